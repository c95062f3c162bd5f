/* A stand-in of libcuda.so.1, which Triton and torch's graphs call. stubs of other functions follow it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The runtime's stand-in, where it is loaded: not in a process that only asks for the driver. */
extern int null_gpu_launch(void) __attribute__((weak));
extern int cudaGetDevice(int *) __attribute__((weak));
extern int cudaDeviceGetAttribute(int *, int, int) __attribute__((weak));
extern int cudaStreamIsCapturing(void *, int *) __attribute__((weak));

static void *const CONTEXT = (void *)0xc0;
static long next_handle = 0x100;
static void *new_handle(void) { return (void *)__sync_add_and_fetch(&next_handle, 16); }

/* NULL_GPU_CUDA_INIT: the error that it returns, or "hang", or "crash". */
int cuInit(unsigned flags) {
  const char *text = getenv("NULL_GPU_CUDA_INIT");
  if (!text) return 0;
  if (!strcmp(text, "crash")) abort();
  while (!strcmp(text, "hang")) pause();
  return atoi(text);
}
int cuDeviceGetCount(int *count) {
  const char *text = getenv("NULL_GPU_CUDA_COUNT");
  *count = atoi(text ? text : getenv("NULL_GPU_COUNT") ? getenv("NULL_GPU_COUNT") : "1");
  return 0;
}
int cuDriverGetVersion(int *version) {
  const char *text = getenv("NULL_GPU_DRIVER_CUDA");
  *version = text ? atoi(text) : 13020;
  return 0;
}
int cuCtxGetCurrent(void **context) { *context = CONTEXT; return 0; }
int cuCtxGetDevice(int *device) {
  *device = 0;
  return cudaGetDevice ? cudaGetDevice(device) : 0;
}
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = CONTEXT; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = 0;
  return cudaDeviceGetAttribute ? cudaDeviceGetAttribute(value, attribute, device) : 0;
}
int cuGetErrorString(int error, const char **text) { *text = "error of a stand-in"; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_OF_A_STAND_IN"; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = new_handle(); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = new_handle(); return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 /* threads of a block */ ? 1024 : attribute == 4 /* registers */ ? 32 : 0;
  return 0;
}
int cuLaunchKernel() { return null_gpu_launch ? null_gpu_launch() : 0; }
int cuLaunchKernelEx(void *config, void *function, void **arguments, void **extra) { return cuLaunchKernel(); }
int cuPointerGetAttribute(void *value, int attribute, unsigned long long address) {
  *(unsigned long long *)value = address;
  return 0;
}
int cuStreamIsCapturing(void *stream, int *status) {
  *status = 0;
  return cudaStreamIsCapturing ? cudaStreamIsCapturing(stream, status) : 0;
}
int cuOccupancyMaxActiveClusters(int *n, void *function, void *config) { *n = 1; return 0; }
int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
  *function = dlsym(RTLD_DEFAULT, symbol);
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : 500; /* CUDA_ERROR_NOT_FOUND */
}
