/* The simulated GPUs behind a fake libcuda.so.1: what the control file says of them, their memory, their clock.
 *
 * Everything happens in the caller's thread, at the call; time on a GPU is counted, not spent. The grammar of the control file is in
 * fake_cuda_library.py. One process uses the library from one thread at a time, as gpuwarden's worker does.
 */
#ifndef GPU_H
#define GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209, PEER_ACCESS_UNSUPPORTED = 217, INVALID_PTX = 218, NOT_FOUND = 500,
    PEER_ACCESS_ALREADY_ENABLED = 704, ILLEGAL_ADDRESS = 700
};
enum { MAX_GPUS = 16, MAX_RULES = 64, MAX_SUMS = 64, MAX_SMS = 256, MAX_BLOCKS = 4096, MAX_ENTRIES = 64, NAME = 64 };
enum { ANY = -1 };

enum action { ERROR, HANG, SLEEP, FLIP, STUCK, FLIP_COPY, WRONG, SLOW, PARTNER, SILENT };
struct rule {
    enum action action;
    char name[NAME];        /* a function of the library or a kernel; `*`: every kernel */
    long long number[3];
    bool struck;            /* of what happens once */
};
struct checksum {
    char entry[NAME];
    uint64_t seed;
    uint32_t value;
};
struct node {
    int gpus;
    char uuid[MAX_GPUS][48];
    long long memory, context, largest;   /* bytes: of a GPU, of a context, of a single block at most */
    int sms, covered;                     /* SMs, and those that blocks are put on */
    int major, minor, shared_per_sm;
    double clock;                         /* MHz */
    double write, verify, copy, peer;     /* bytes per second */
    bool no_peers, integrated;
    char contexts[256];                   /* folder with a file BOARD.PID for each context; empty: none */
    char log[256];                        /* file to which each block of 1 MiB and more is written; empty: none */
    struct checksum sum[MAX_SUMS];
    int sums;
    struct rule rule[MAX_RULES];
    int rules;
};
extern struct node node;

extern double gpu_seconds;  /* what the GPU has worked so far */
extern int current;         /* number of the GPU in `node` whose context is current; ANY: none */

/* control.c */
void read_control_file(void);
CUresult strike(const char *name);          /* counts a call, does what the control file asks for at this one */
long long calls_of(const char *name);

/* memory.c: addresses of a GPU are addresses of this process */
CUresult allocate(size_t size, CUdeviceptr *out);
CUresult release(CUdeviceptr address);
void release_all(int gpu);
long long taken(int gpu);
CUresult accessible(CUdeviceptr address, size_t size); /* by kernels of the current GPU; ILLEGAL_ADDRESS */
int owner_of(CUdeviceptr address);
void let_access(int gpu, int peer);

/* kernels.c */
struct launch {
    const char *entry;
    unsigned int grid, block, shared;
    const void *parameters;
    size_t size;
};
CUresult run_kernel(const struct launch *launch);
bool is_memory_kernel(const char *entry);
bool silent(const char *name); /* it does nothing, as asked */

#endif
