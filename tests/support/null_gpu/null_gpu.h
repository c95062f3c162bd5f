/* What the stand-ins share: what they count, and the faults that a test asks for. */
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_runtime_api.h"
#undef cudaGetDeviceProperties

/* The names are those that null_gpu.py reads with null_gpu_name(). */
enum counter {
  LAUNCHES, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BYTES_TO_DEVICE, SYNCHRONIZATIONS, ALLOCATIONS,
  PINNED_ALLOCATIONS, CONVOLUTIONS, MATRIX_PRODUCTS, COLLECTIVES, GRAPH_LAUNCHES, MEMSETS, NUM_COUNTERS
};

void null_gpu_add(enum counter which, long amount);
long null_gpu_count(int which);

static inline void count(enum counter which) { null_gpu_add(which, 1); }

static inline long number(const char *variable, long otherwise) {
  const char *text = getenv(variable);
  return text && *text ? strtol(text, NULL, 0) : otherwise;
}

/* The error of NULL_GPU_FAIL=RANK:LAUNCHES:CODE, once this rank has launched so many kernels; otherwise 0. */
int null_gpu_error(void);
/* Count a kernel, and return that error. */
int null_gpu_launch(void);
/* Wait as long as the device of this rank stands still: NULL_GPU_HANG=RANK:LAUNCHES, rank -1 is all. */
int null_gpu_hangs(void);
void null_gpu_wait(void);
