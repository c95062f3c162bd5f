/* A stand-in of CUDA's runtime. Memory, copies, streams and events are real; kernels are counted and not run.
 *
 * torch is the real CUDA build. What it asks of the runtime and is not here, stubs.c answers with 0.
 */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <dlfcn.h>
#include <sys/mman.h>

static const char *NAMES[NUM_COUNTERS] = {
  "launches", "host_to_device", "device_to_host", "device_to_device", "bytes_to_device", "synchronizations",
  "allocations", "pinned_allocations", "convolutions", "matrix_products", "collectives", "graph_launches", "memsets"
};
static volatile long counters[NUM_COUNTERS];

void null_gpu_add(enum counter which, long amount) { __sync_fetch_and_add(&counters[which], amount); }
long null_gpu_count(int which) { return counters[which]; }
const char *null_gpu_name(int which) { return which < NUM_COUNTERS ? NAMES[which] : NULL; }

/* Faults */

static int is_this_rank(long rank) { return rank == -1 || rank == number("RANK", 0); }

int null_gpu_error(void) {
  static int is_read, after, code, mine;
  if (!is_read) {
    const char *text = getenv("NULL_GPU_FAIL");
    int rank = 0;
    mine = text && sscanf(text, "%d:%d:%d", &rank, &after, &code) == 3 && is_this_rank(rank);
    is_read = 1;
  }
  return mine && counters[LAUNCHES] >= after ? code : 0;
}

int null_gpu_launch(void) {
  count(LAUNCHES);
  return null_gpu_error();
}

int null_gpu_hangs(void) {
  static int is_read, after, mine;
  if (!is_read) {
    const char *text = getenv("NULL_GPU_HANG");
    int rank = 0;
    mine = text && sscanf(text, "%d:%d", &rank, &after) == 2 && is_this_rank(rank);
    is_read = 1;
  }
  return mine && counters[LAUNCHES] >= after;
}

void null_gpu_wait(void) {
  while (null_gpu_hangs() && !null_gpu_error()) usleep(1000);
}

static cudaError_t synchronize(void) {
  count(SYNCHRONIZATIONS);
  null_gpu_wait();
  return null_gpu_error();
}

/* Devices */

static __thread int current_device;

static int num_visible(void) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return number("NULL_GPU_COUNT", 1);
  if (!*visible) return 0;
  int entries = 1;
  for (const char *letter = visible; *letter; letter++) entries += *letter == ',';
  return entries;
}

/* The number of a visible device among all: only lists of neighbours are understood. */
static int physical(int device) { return number("CUDA_VISIBLE_DEVICES", 0) + device; }

static size_t device_bytes(void) { return (size_t)number("NULL_GPU_BYTES", 150L << 30); }

cudaError_t cudaGetDeviceCount(int *devices) {
  *devices = num_visible();
  return *devices ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int *device) { *device = current_device; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= num_visible()) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { *version = number("NULL_GPU_DRIVER_CUDA", CUDART_VERSION); return 0; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return 0; }
cudaError_t cudaGetLastError(void) { return null_gpu_error(); }
cudaError_t cudaPeekAtLastError(void) { return null_gpu_error(); }

const char *cudaGetErrorString(cudaError_t error) { /* the real texts, which the product's table knows */
  switch ((int)error) {
    case 0: return "no error";
    case 2: return "out of memory";
    case 100: return "no CUDA-capable device is detected";
    case 209: return "no kernel image is available for execution on the device";
    case 214: return "uncorrectable ECC error encountered";
    case 700: return "an illegal memory access was encountered";
    case 719: return "unspecified launch failure";
    default: return "unknown error";
  }
}
const char *cudaGetErrorName(cudaError_t error) { return error ? "cudaErrorOfTheStandIn" : "cudaSuccess"; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  const char *name = getenv("NULL_GPU_NAME");
  const long capability = number("NULL_GPU_CAPABILITY", 90);
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "%s", name ? name : "NVIDIA H200 (null)");
  memset(properties->uuid.bytes, 0x11, 16);
  properties->uuid.bytes[15] = (char)(getenv("NULL_GPU_SAME_UUID") ? 0 : physical(device));
  properties->major = capability / 10;
  properties->minor = capability % 10;
  properties->totalGlobalMem = device_bytes();
  properties->multiProcessorCount = 132;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->warpSize = 32;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  properties->sharedMemPerMultiprocessor = 233472;
  properties->l2CacheSize = 60 << 20;
  properties->memoryBusWidth = 6144;
  properties->textureAlignment = 512;
  properties->asyncEngineCount = 3;
  properties->concurrentKernels = properties->unifiedAddressing = properties->canMapHostMemory = 1;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, device);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = properties.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = properties.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = properties.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = properties.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMaxGridDimX: *value = properties.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = properties.maxGridSize[1]; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = properties.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 3201000; break;
    case cudaDevAttrMemoryPoolsSupported: case cudaDevAttrCooperativeLaunch: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
  snprintf(text, size, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != peer; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return synchronize(); }

/* Memory: ordinary pages. A table tells device memory from pinned host memory. */

struct block { char *start; size_t bytes; int on_host; };
static struct block *blocks;
static int num_blocks, room_for_blocks;
static size_t used_bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void remember(void *start, size_t bytes, int on_host) {
  pthread_mutex_lock(&lock);
  if (num_blocks == room_for_blocks) {
    room_for_blocks = room_for_blocks * 2 + 64;
    blocks = realloc(blocks, room_for_blocks * sizeof *blocks);
  }
  blocks[num_blocks++] = (struct block){start, bytes, on_host};
  pthread_mutex_unlock(&lock);
}

static size_t forget(void *start) {
  size_t bytes = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_blocks; i++) {
    if (blocks[i].start != start) continue;
    bytes = blocks[i].bytes;
    blocks[i] = blocks[--num_blocks];
    break;
  }
  pthread_mutex_unlock(&lock);
  return bytes;
}

static int find_block(const void *address, struct block *found) {
  int is_known = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_blocks && !is_known; i++) {
    const char *start = blocks[i].start;
    is_known = (const char *)address >= start && (const char *)address < start + blocks[i].bytes;
    if (is_known) *found = blocks[i];
  }
  pthread_mutex_unlock(&lock);
  return is_known;
}

static void *new_pages(size_t bytes) {
  void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return start == MAP_FAILED ? NULL : start;
}

cudaError_t cudaMalloc(void **start, size_t bytes) {
  count(ALLOCATIONS);
  pthread_mutex_lock(&lock);
  const int fits = used_bytes + bytes <= device_bytes();
  if (fits) used_bytes += bytes;
  pthread_mutex_unlock(&lock);
  *start = fits ? new_pages(bytes ? bytes : 1) : NULL;
  if (!*start) return cudaErrorMemoryAllocation;
  remember(*start, bytes ? bytes : 1, 0);
  return cudaSuccess;
}
cudaError_t cudaFree(void *start) {
  if (!start) return cudaSuccess;
  const size_t bytes = forget(start);
  pthread_mutex_lock(&lock);
  used_bytes -= bytes;
  pthread_mutex_unlock(&lock);
  munmap(start, bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **start, size_t bytes, cudaStream_t stream) { return cudaMalloc(start, bytes); }
cudaError_t cudaFreeAsync(void *start, cudaStream_t stream) { return cudaFree(start); }
cudaError_t cudaHostAlloc(void **start, size_t bytes, unsigned flags) {
  count(PINNED_ALLOCATIONS);
  *start = new_pages(bytes ? bytes : 1);
  remember(*start, bytes ? bytes : 1, 1);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void **start, size_t bytes) { return cudaHostAlloc(start, bytes, 0); }
cudaError_t cudaFreeHost(void *start) {
  if (start) munmap(start, forget(start));
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void *start, size_t bytes, unsigned flags) { remember(start, bytes, 1); return 0; }
cudaError_t cudaHostUnregister(void *start) { forget(start); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *total = device_bytes();
  *available = *total - used_bytes - ((size_t)600 << 20); /* what a context takes */
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
  struct block found;
  memset(attributes, 0, sizeof *attributes);
  attributes->device = current_device;
  attributes->type = cudaMemoryTypeUnregistered;
  if (!find_block(address, &found)) return cudaSuccess;
  attributes->type = found.on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->devicePointer = (void *)address;
  attributes->hostPointer = found.on_host ? (void *)address : NULL;
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void **start, const void *symbol) {
  *start = new_pages(4096);
  remember(*start, 4096, 0);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) { *pool = (cudaMemPool_t)0x99; return 0; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  *(uint64_t *)value = 0;
  return cudaSuccess;
}

/* Copies */

static int is_on_device(const void *address) {
  struct block found;
  return find_block(address, &found) && !found.on_host;
}

static cudaError_t copy(void *to, const void *from, size_t bytes) {
  if (!is_on_device(to)) {
    count(DEVICE_TO_HOST);
    null_gpu_wait();
  } else if (is_on_device(from)) {
    count(DEVICE_TO_DEVICE);
  } else {
    count(HOST_TO_DEVICE);
    null_gpu_add(BYTES_TO_DEVICE, bytes);
  }
  memmove(to, from, bytes);
  return null_gpu_error();
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  count(SYNCHRONIZATIONS);
  return copy(to, from, bytes);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s) {
  return copy(to, from, bytes);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int i, const void *from, int j, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  count(DEVICE_TO_DEVICE);
  for (size_t row = 0; row < height; row++)
    memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return null_gpu_error();
}
cudaError_t cudaMemset(void *start, int value, size_t bytes) {
  count(MEMSETS);
  memset(start, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *start, int value, size_t bytes, cudaStream_t s) { return cudaMemset(start, value, bytes); }

/* Streams and events: all work is over when it is queued. */

static long next_handle = 0x1000;
static void *new_handle(void) { return (void *)__sync_add_and_fetch(&next_handle, 16); }

cudaError_t cudaStreamCreate(cudaStream_t *stream) { *stream = new_handle(); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int p) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return synchronize(); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return null_gpu_hangs() ? cudaErrorNotReady : null_gpu_error(); }
cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = new_handle(); return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return cudaEventCreate(event); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return synchronize(); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return null_gpu_hangs() ? cudaErrorNotReady : null_gpu_error(); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) { *ms = 1; return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) { function(data); return 0; }

/* Graphs: a capture records nothing, and a launch counts as one. */

static int is_capturing;
static cudaStream_t captured_stream;
static unsigned long long capture_id;

static enum cudaStreamCaptureStatus capture_status(cudaStream_t stream) {
  const int active = is_capturing && stream == captured_stream;
  return active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  is_capturing = 1;
  captured_stream = stream;
  capture_id++;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                          const cudaGraphEdgeData *edges, size_t n, enum cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(stream, mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  is_capturing = 0;
  *graph = new_handle();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = capture_status(stream);
  return cudaSuccess;
}
/* CUDA 13 has one argument more than CUDA 12. */
#if CUDART_VERSION >= 13000
#define CAPTURE_EDGES const cudaGraphEdgeData **edges,
#else
#define CAPTURE_EDGES
#endif
#undef cudaStreamGetCaptureInfo
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     CAPTURE_EDGES size_t *num_nodes) {
  *status = capture_status(stream);
  if (id) *id = capture_id;
  if (graph) *graph = (cudaGraph_t)0x77;
  if (nodes) *nodes = NULL;
  if (num_nodes) *num_nodes = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  *exec = new_handle();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) { count(GRAPH_LAUNCHES); return null_gpu_error(); }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) { *n = 5; return cudaSuccess; }
cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *data, cudaHostFn_t destroy, unsigned n, unsigned flags) {
  *object = new_handle();
  return cudaSuccess;
}

/* Kernels */

cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
  return null_gpu_launch();
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *f, void **arguments) {
  return null_gpu_launch();
}
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **a, size_t shared, cudaStream_t s) {
  return null_gpu_launch();
}
cudaError_t __cudaLaunchKernel(void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
  return null_gpu_launch();
}
cudaError_t __cudaGetKernel(void **kernel, const void *f) { *kernel = (void *)f; return cudaSuccess; }
void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }

static __thread struct { dim3 grid, block; size_t shared; void *stream; } configuration;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.shared = shared;
  configuration.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(void **)stream = configuration.stream;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *f) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t s, unsigned g) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver ? dlsym(driver, symbol) : NULL;
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
