/* A stand-in of libnvidia-ml.so.1. What it does not have, pynvml takes for what this driver cannot answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int gpus[64];

static const char *text(const char *variable, const char *otherwise) {
  const char *value = getenv(variable);
  return value && *value ? value : otherwise;
}
static unsigned number(const char *variable, const char *otherwise) { return (unsigned)atol(text(variable, otherwise)); }
static int index_of(void *handle) { return (int)((int *)handle - gpus); }

int nvmlInitWithFlags(unsigned flags) { return (int)number("NULL_GPU_NVML_INIT", "0"); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) {
  snprintf(to, size, "%s", text("NULL_GPU_DRIVER", "595.10.01"));
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = (int)number("NULL_GPU_DRIVER_CUDA", "13020"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = number("NULL_GPU_COUNT", "1");
  return (int)number("NULL_GPU_NVML_LIST", "0");
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  *handle = &gpus[index];
  if (index >= number("NULL_GPU_COUNT", "1")) return 2; /* NVML_ERROR_INVALID_ARGUMENT */
  return (int)number("NULL_GPU_NVML_OPEN", "0");
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) { *handle = &gpus[0]; return 0; }
int nvmlDeviceGetUUID(void *handle, char *to, unsigned size) {
  snprintf(to, size, "GPU-11111111-1111-1111-1111-1111111111%02x", index_of(handle));
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  *handle = &gpus[strtol(uuid + strlen(uuid) - 2, NULL, 16)];
  return 0;
}
/* With NULL_GPU_APART each GPU has a NUMA node of its own, of one core: that with its index. */
int nvmlDeviceGetCpuAffinity(void *handle, unsigned words, unsigned long *cores) {
  for (unsigned word = 0; word < words; word++) cores[word] = 0;
  if (!*text("NULL_GPU_APART", "")) return 3; /* not supported */
  cores[index_of(handle) / 64] = 1ul << index_of(handle) % 64;
  return 0;
}
int nvmlDeviceGetName(void *handle, char *to, unsigned size) {
  snprintf(to, size, "%s", text("NULL_GPU_NAME", "NVIDIA H200 (null)"));
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  const unsigned capability = number("NULL_GPU_CAPABILITY", "90");
  *major = capability / 10;
  *minor = capability % 10;
  return 0;
}
int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { *minor = index_of(handle); return 0; }
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
  *memory = (struct memory){150ull << 30, 149ull << 30, 1ull << 30};
  return 0;
}
struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *rates) {
  *rates = (struct utilization){50, 10};
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
  static unsigned long long energy = 1000;
  *millijoules = energy += 500;
  return 0;
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *degrees) { *degrees = 40; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *infos) { *count = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *infos) { *count = 0; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) { return 3; /* not supported */ }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *info) { return 3; }
