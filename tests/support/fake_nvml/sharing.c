/* The entry points around who uses a GPU: memory, processes, MIG instances. */
#include "node.h"

#include <stdlib.h>

static unsigned long long memory_of_processes(nvmlDevice_t device) {
    nvmlProcessInfo_t process[MAX_PROCESSES];
    unsigned long long sum = 0;
    for (unsigned int left = processes_of(device, COMPUTE, MAX_PROCESSES, process); left > 0; left--)
        sum += process[left - 1].usedGpuMemory;
    return sum;
}

static nvmlReturn_t memory_of(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    const struct mig_instance *mig = mig_instance_of(device);
    if (mig != NULL) {
        out->total = mig->memory_mib << 20;
        out->reserved = 0;
        out->used = memory_of_processes(device);
    } else {
        ANSWER(&out->total, reading_of(device->board, READING_memory_total_bytes));
        ANSWER(&out->reserved, reading_of(device->board, READING_memory_reserved_bytes));
        ANSWER(&out->used, reading_of(device->board, READING_memory_used_bytes));
    }
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    ENTER_GPU_OR_MIG(device);
    EXPECT_VERSION(out->version, nvmlMemory_v2);
    return memory_of(device, out);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    ENTER_GPU_OR_MIG(device);
    nvmlMemory_v2_t memory;
    nvmlReturn_t code = memory_of(device, &memory);
    if (code == NVML_SUCCESS)
        *out = (nvmlMemory_t){.total = memory.total, .free = memory.free, .used = memory.used + memory.reserved};
    return code;
}

/* An instance has a window as large as its memory. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out) {
    ENTER_GPU_OR_MIG(device);
    const struct mig_instance *mig = mig_instance_of(device);
    ANSWER(&out->bar1Total, mig != NULL ? (long long)(mig->memory_mib << 20)
                                        : reading_of(device->board, READING_bar1_total_bytes));
    ANSWER(&out->bar1Used, reading_of(device->board, READING_bar1_used_bytes));
    out->bar1Free = out->bar1Total - out->bar1Used;
    return NVML_SUCCESS;
}

#ifdef LONG_PROCESS_RECORDS /* as the first drivers of R535 */
struct __attribute__((may_alias)) long_record {
    unsigned int pid;
    unsigned long long memory;
    unsigned int gpu_instance, compute_instance;
    unsigned long long protected;
};

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *out) {
    ENTER(device);
    *out = (nvmlConfComputeMemSizeInfo_t){0};
    return NVML_SUCCESS;
}

/* Nothing is written where the caller gave no room. */
static void lengthen(nvmlProcessInfo_t *records, unsigned int count) {
    struct long_record *to = (void *)records;
    while (count-- > 0) {
        nvmlProcessInfo_t from = records[count];
        to[count] = (struct long_record){from.pid, from.usedGpuMemory, from.gpuInstanceId, from.computeInstanceId, 0};
    }
}
#else
static void lengthen(nvmlProcessInfo_t *records, unsigned int count) {
    (void)records, (void)count;
}
#endif

#define PROCESS_GETTER(call, kind)                                                                                     \
    nvmlReturn_t call(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {                              \
        ENTER_GPU_OR_MIG(device);                                                                                      \
        unsigned int room = *count;                                                                                    \
        *count = processes_of(device, kind, room, out);                                                                \
        lengthen(out, *count < room ? *count : room);                                                                  \
        return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;                                            \
    }
#ifdef PROCESSES_V2 /* as drivers before R510 */
#pragma GCC visibility push(default)
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out);
#pragma GCC visibility pop
PROCESS_GETTER(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE)
PROCESS_GETTER(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS)
#else
PROCESS_GETTER(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
PROCESS_GETTER(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)
PROCESS_GETTER(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)
#endif

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *out) {
    ENTER(device);
    *out = reading_of(device->board, READING_mig_mode) == NVML_FEATURE_ENABLED ? MAX_MIG : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out) {
    ENTER(device);
    if (index >= MAX_MIG)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = handle_of(device->board, (int)index);
    return mig_instance_of(*out) == NULL ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *out) {
    ENTER_GPU_OR_MIG(device);
    *out = device->mig != WHOLE_GPU;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out) {
    ENTER_GPU_OR_MIG(device);
    *out = handle_of(device->board, WHOLE_GPU);
    return NVML_SUCCESS;
}

#define MIG_GETTER(call, member)                                                                                       \
    nvmlReturn_t call(nvmlDevice_t device, unsigned int *out) {                                                        \
        ENTER_GPU_OR_MIG(device);                                                                                      \
        const struct mig_instance *mig = mig_instance_of(device);                                                      \
        if (mig == NULL)                                                                                               \
            return not_supported();                                                                                    \
        *out = mig->member;                                                                                            \
        return NVML_SUCCESS;                                                                                           \
    }
MIG_GETTER(nvmlDeviceGetGpuInstanceId, gpu_instance)
MIG_GETTER(nvmlDeviceGetComputeInstanceId, compute_instance)

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out) {
    ENTER_GPU_OR_MIG(device);
    const struct mig_instance *mig = mig_instance_of(device);
    if (mig == NULL)
        return not_supported();
    unsigned int slices = (unsigned int)strtoul(mig->profile, NULL, 10); /* 3 of "3g.40gb" */
    *out = (nvmlDeviceAttributes_t){.multiprocessorCount = 16 * slices,
                                    .gpuInstanceSliceCount = slices,
                                    .computeInstanceSliceCount = slices,
                                    .memorySizeMB = mig->memory_mib};
    return NVML_SUCCESS;
}
