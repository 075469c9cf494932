/* Memory of the simulated GPUs: mappings of this process, counted for each GPU; what was freed is no longer there. */
#define _GNU_SOURCE
#include "gpu.h"

#include <stdio.h>
#include <sys/mman.h>

enum { MAX_BLOCKS_HELD = 64 };
static const size_t GRAIN = 64 << 10;
static struct {
    char *at;
    size_t size, counted;
    int gpu;
} held[MAX_BLOCKS_HELD];
static bool may_access[MAX_GPUS][MAX_GPUS];

static void note(const char *what, size_t size) {
    FILE *file = size < (1 << 20) || *node.log == '\0' ? NULL : fopen(node.log, "ae");
    if (file == NULL)
        return;
    fprintf(file, "%s %zu %.6f\n", what, size, gpu_seconds);
    fclose(file);
}

long long taken(int gpu) {
    long long sum = node.context;
    for (int i = 0; i < MAX_BLOCKS_HELD; i++)
        sum += held[i].at != NULL && held[i].gpu == gpu ? (long long)held[i].counted : 0;
    return sum;
}

/* Small blocks share what a context has; a large one takes whole grains. */
CUresult allocate(size_t size, CUdeviceptr *out) {
    size_t counted = size < GRAIN ? 0 : (size + GRAIN - 1) / GRAIN * GRAIN;
    if (size == 0)
        return INVALID_VALUE;
    if ((long long)size > node.largest || taken(current) + (long long)counted > node.memory)
        return OUT_OF_MEMORY;
    for (int i = 0; i < MAX_BLOCKS_HELD; i++) {
        if (held[i].at != NULL)
            continue;
        void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            return OUT_OF_MEMORY;
        held[i].at = at, held[i].size = size, held[i].counted = counted, held[i].gpu = current;
        *out = (CUdeviceptr)(uintptr_t)at;
        note("allocated", size);
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

static void drop(int i) {
    note("freed", held[i].size);
    munmap(held[i].at, held[i].size);
    held[i].at = NULL;
}

CUresult release(CUdeviceptr address) {
    for (int i = 0; i < MAX_BLOCKS_HELD; i++)
        if (held[i].at != NULL && (CUdeviceptr)(uintptr_t)held[i].at == address) {
            drop(i);
            return SUCCESS;
        }
    return INVALID_VALUE;
}

void release_all(int gpu) {
    for (int i = 0; i < MAX_BLOCKS_HELD; i++)
        if (held[i].at != NULL && held[i].gpu == gpu)
            drop(i);
}

static int block_with(CUdeviceptr address) {
    for (int i = 0; i < MAX_BLOCKS_HELD; i++) {
        CUdeviceptr start = (CUdeviceptr)(uintptr_t)held[i].at;
        if (held[i].at != NULL && address >= start && address < start + held[i].size)
            return i;
    }
    return ANY;
}

int owner_of(CUdeviceptr address) {
    int block = block_with(address);
    return block == ANY ? ANY : held[block].gpu;
}

CUresult accessible(CUdeviceptr address, size_t size) {
    int block = block_with(address);
    if (block == ANY || address + size > (CUdeviceptr)(uintptr_t)held[block].at + held[block].size)
        return ILLEGAL_ADDRESS;
    return held[block].gpu == current || may_access[current][held[block].gpu] ? SUCCESS : ILLEGAL_ADDRESS;
}

void let_access(int gpu, int peer) { may_access[gpu][peer] = true; }
