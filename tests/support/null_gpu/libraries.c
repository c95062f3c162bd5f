/* Stand-ins of cuBLAS, cuDNN and NCCL. Products, convolutions and collectives are counted and not computed.
 *
 * A collective of one rank gives every rank its own numbers. NULL_GPU_NCCL_INIT=CODE lets NCCL fail at its start,
 * NULL_GPU_NCCL_FAIL=COLLECTIVES:CODE after so many collectives, with NULL_GPU_NCCL_LAST_ERROR as its last error.
 */
#include "null_gpu.h"

static int counted(enum counter which) {
  count(which);
  return 0;
}

/* cuBLAS */

int cublasCreate_v2(void **handle) { *handle = (void *)0xb1a5; return 0; }
int cublasLtCreate(void **handle) { *handle = (void *)0xb1a6; return 0; }
const char *cublasGetStatusString(int status) { return "status of a stand-in"; }
int cublasGetVersion_v2(void *handle, int *version) { *version = 130401; return 0; }
size_t cublasLtGetVersion(void) { return 130401; }
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int requested, void *results, int *returned) {
  memset(results, 0, 96); /* one cublasLtMatmulHeuristicResult_t: success, no workspace */
  *returned = 1;
  return 0;
}
int cublasLtMatmul(void) { return counted(MATRIX_PRODUCTS); }
int cublasGemmEx(void) { return counted(MATRIX_PRODUCTS); }
int cublasSgemm_v2(void) { return counted(MATRIX_PRODUCTS); }
int cublasGemmStridedBatchedEx(void) { return counted(MATRIX_PRODUCTS); }
int cublasSgemmStridedBatched(void) { return counted(MATRIX_PRODUCTS); }

/* cuDNN */

size_t cudnnGetVersion(void) { return number("NULL_GPU_CUDNN", 92600); }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
int cudnnGetProperty(int which, int *value) {
  const long version = cudnnGetVersion();
  *value = which == 0 ? version / 10000 : which == 1 ? version / 100 % 100 : version % 100;
  return 0;
}
int cudnnCreate(void **handle) { *handle = (void *)0xdd1; return 0; }
const char *cudnnGetErrorString(int status) { return "status of a stand-in"; }
void cudnnGetLastErrorString(char *text, size_t size) { if (size) *text = 0; }
int cudnnCreateTensorDescriptor(void **descriptor) { *descriptor = malloc(64); return 0; }
int cudnnCreateFilterDescriptor(void **descriptor) { *descriptor = malloc(64); return 0; }
int cudnnCreateConvolutionDescriptor(void **descriptor) { *descriptor = malloc(64); return 0; }
int cudnnCreateActivationDescriptor(void **descriptor) { *descriptor = malloc(64); return 0; }
int cudnnBackendCreateDescriptor(int type, void **descriptor) { *descriptor = calloc(1, 64); return 0; }
int cudnnBackendDestroyDescriptor(void *descriptor) { free(descriptor); return 0; }
int cudnnBackendFinalize(void *descriptor) { return 0; }
int cudnnBackendSetAttribute(void *descriptor, int attribute, int type, int64_t n, const void *value) { return 0; }
int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t requested, int64_t *returned,
                             void *values) {
  /* CUDNN_ATTR_ENGINE_*: an engine without numerical notes, knobs, layouts and behaviours. */
  const int is_list_of_an_engine = attribute > 1301 && attribute <= 1310;
  const int64_t n = requested > 0 && !is_list_of_an_engine;
  if (returned) *returned = n;
  if (values && n && type == 3 /* CUDNN_TYPE_INT64 */) *(int64_t *)values = 0;
  return 0;
}
int cudnnBackendExecute(void *handle, void *plan, void *variants) { return counted(CONVOLUTIONS); }
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int ops, void *x, void *z, void *y,
                                                             void *statistics, void *activation, size_t *bytes) {
  *bytes = 0;
  return 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int ops, void *x, void *y, void *dy,
                                                      void *dz, void *dx, void *s, void *activation, size_t *bytes) {
  *bytes = 0;
  return 0;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int ops, void *a, void *x, size_t *bytes) {
  *bytes = 0;
  return 0;
}
int cudnnBatchNormalizationForwardTrainingEx(void) { return null_gpu_launch(); }
int cudnnBatchNormalizationBackwardEx(void) { return null_gpu_launch(); }

/* NCCL */

struct id { char bytes[128]; };
struct communicator { int size, rank; };

static int collective(void) {
  static int is_read, after, code;
  if (!is_read) {
    const char *text = getenv("NULL_GPU_NCCL_FAIL");
    if (!text || sscanf(text, "%d:%d", &after, &code) != 2) code = 0;
    is_read = 1;
  }
  count(COLLECTIVES);
  return code && null_gpu_count(COLLECTIVES) > after ? code : 0;
}

static size_t width(int type) { /* of ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, half, float, double */
  static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8};
  return type < 9 ? widths[type] : type == 9 /* bfloat16 */ ? 2 : 1 /* the two of 8 bits */;
}

static int new_communicator(void **result, int size, int rank) {
  struct communicator *communicator = malloc(sizeof *communicator);
  *communicator = (struct communicator){size, rank};
  *result = communicator;
  return number("NULL_GPU_NCCL_INIT", 0);
}

int ncclGetVersion(int *version) { *version = 23007; return 0; }
int ncclGetUniqueId(struct id *id) { memset(id, 7, sizeof *id); return 0; }
int ncclCommGetUniqueId(void *communicator, struct id *id) { return ncclGetUniqueId(id); }
int ncclCommInitRank(void **result, int size, struct id id, int rank) { return new_communicator(result, size, rank); }
int ncclCommInitRankConfig(void **result, int size, struct id id, int rank, void *config) {
  return new_communicator(result, size, rank);
}
int ncclCommInitRankScalable(void **result, int size, int rank, int n, struct id *ids, void *config) {
  return new_communicator(result, size, rank);
}
int ncclCommSplit(void *communicator, int color, int key, void **result, void *config) { *result = communicator; return 0; }
int ncclCommCount(void *communicator, int *size) { *size = ((struct communicator *)communicator)->size; return 0; }
int ncclCommUserRank(void *communicator, int *rank) { *rank = ((struct communicator *)communicator)->rank; return 0; }
int ncclCommGetAsyncError(void *communicator, int *error) { *error = 0; return 0; }
const char *ncclGetErrorString(int error) { /* NCCL's own texts */
  switch (error) {
    case 0: return "no error";
    case 1: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case 2: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case 3: return "internal error - please report this issue to the NCCL developers";
    case 6: return "remote process exited or there was a network error";
    default: return "unknown result code";
  }
}
const char *ncclGetLastError(void *communicator) {
  const char *text = getenv("NULL_GPU_NCCL_LAST_ERROR");
  return text ? text : "";
}
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *communicator, void *stream) {
  if (from != to) memmove(to, from, n * width(type));
  return collective();
}
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, void *communicator, void *stream) {
  if (from && from != to) memmove(to, from, n * width(type));
  return collective();
}
int ncclBcast(void *buffer, size_t n, int type, int root, void *communicator, void *stream) { return collective(); }
int ncclAllGather(const void *from, void *to, size_t n, int type, void *communicator, void *stream) {
  const size_t bytes = n * width(type);
  for (int rank = 0; rank < ((struct communicator *)communicator)->size; rank++)
    memmove((char *)to + rank * bytes, from, bytes);
  return collective();
}
int ncclSend(const void *buffer, size_t n, int type, int peer, void *communicator, void *stream) { return collective(); }
int ncclRecv(void *buffer, size_t n, int type, int peer, void *communicator, void *stream) { return collective(); }
