/* The entry points of a libcuda.so.1 without a driver, those that gpuwarden's active test calls. */
#define _GNU_SOURCE
#include "gpu.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* Opens an entry point: counted, struck as the control file asks, and of use only after cuInit, or with a context. */
#define ENTER()                                                                                                        \
    CUresult struck = strike(__func__);                                                                                \
    if (struck != SUCCESS)                                                                                             \
        return struck;                                                                                                 \
    if (!initialised)                                                                                                  \
    return NOT_INITIALIZED
#define ENTER_CONTEXT()                                                                                                \
    ENTER();                                                                                                           \
    if (current == ANY)                                                                                                \
    return INVALID_CONTEXT

double gpu_seconds;
int current = ANY;

struct context {
    int gpu;
    bool live;
};
struct module {
    char entry[MAX_ENTRIES][NAME];
    int entries;
};
struct function {
    char name[NAME];
    unsigned int allowed_shared;
};

static bool initialised;
static int visible[MAX_GPUS], visible_gpus; /* numbers in `node`, in the order of CUDA_VISIBLE_DEVICES */
static struct context context[MAX_GPUS];
static double event[64];
static int events;

/* As the driver has it, the list ends at the first name that is none. */
static void read_visible(void) {
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    if (given == NULL) {
        while (visible_gpus < node.gpus)
            visible[visible_gpus] = visible_gpus, visible_gpus++;
        return;
    }
    char list[1024], *rest = list, *name;
    snprintf(list, sizeof list, "%s", given);
    while ((name = strtok_r(rest, ",", &rest)) != NULL && visible_gpus < MAX_GPUS) {
        int gpu = 0;
        while (gpu < node.gpus && strcmp(node.uuid[gpu], name) != 0)
            gpu++;
        if (gpu == node.gpus)
            return;
        visible[visible_gpus++] = gpu;
    }
}

EXPORT CUresult cuInit(unsigned int flags) {
    (void)flags;
    CUresult struck = strike(__func__);
    if (struck != SUCCESS)
        return struck;
    if (!initialised)
        read_visible();
    initialised = visible_gpus > 0;
    return initialised ? SUCCESS : NO_DEVICE;
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    ENTER();
    if (ordinal < 0 || ordinal >= visible_gpus)
        return INVALID_DEVICE;
    *out = ordinal;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(unsigned char *out, CUdevice device) {
    ENTER();
    const char *digits = node.uuid[visible[device]] + strlen("GPU-");
    for (int i = 0; i < 16; i++, digits += 2) {
        digits += *digits == '-';
        sscanf(digits, "%2hhx", &out[i]);
    }
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device) {
    ENTER();
    (void)device;
    switch (attribute) {
    case 16: *out = node.sms; return SUCCESS;
    case 18: *out = node.integrated; return SUCCESS;
    case 75: *out = node.major; return SUCCESS;
    case 76: *out = node.minor; return SUCCESS;
    case 81: *out = node.shared_per_sm; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

/* --- Contexts ------------------------------------------------------------------------------------------------------ */

static void mark(int gpu, bool live) {
    char path[PATH_MAX];
    if (*node.contexts == '\0')
        return;
    snprintf(path, sizeof path, "%s/%d.%d", node.contexts, gpu, (int)getpid());
    int file = live ? open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644) : -1;
    if (file >= 0)
        close(file);
    if (!live)
        unlink(path);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    ENTER();
    (void)device, (void)flags;
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(void **out, CUdevice device) {
    ENTER();
    struct context *made = &context[device];
    made->gpu = visible[device], made->live = true;
    mark(made->gpu, true);
    *out = made;
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER();
    if (!context[device].live)
        return INVALID_CONTEXT;
    context[device].live = false;
    release_all(context[device].gpu);
    mark(context[device].gpu, false);
    current = current == context[device].gpu ? ANY : current;
    return SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(void *wanted) {
    ENTER();
    const struct context *to = wanted;
    if (to == NULL || !to->live)
        return INVALID_CONTEXT;
    current = to->gpu;
    return SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer) {
    ENTER();
    *out = device != peer && !node.no_peers;
    return SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(void *wanted, unsigned int flags) {
    ENTER_CONTEXT();
    const struct context *to = wanted;
    if (node.no_peers || flags != 0)
        return PEER_ACCESS_UNSUPPORTED;
    if (!to->live)
        return INVALID_CONTEXT;
    let_access(current, to->gpu);
    return SUCCESS;
}

/* --- Memory -------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    ENTER_CONTEXT();
    *total = (size_t)node.memory;
    *available = (size_t)(node.memory - taken(current));
    return SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
    ENTER_CONTEXT();
    return allocate(size, out);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER_CONTEXT();
    return release(address);
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags) {
    ENTER_CONTEXT();
    (void)flags;
    *out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    return *out == NULL ? OUT_OF_MEMORY : SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *at) {
    ENTER_CONTEXT();
    free(at);
    return SUCCESS;
}

static CUresult copy(const char *call, CUdeviceptr on_gpu, void *to, const void *from, size_t size) {
    if (accessible(on_gpu, size) != SUCCESS)
        return INVALID_VALUE;
    if (!silent(call))
        memcpy(to, from, size);
    for (const struct rule *rule = node.rule; rule < node.rule + node.rules; rule++)
        if (rule->action == FLIP_COPY && strcmp(rule->name, call) == 0 && (size_t)rule->number[0] < size &&
            (rule->number[2] == 0 || rule->number[2] == calls_of(call)))
            ((uint8_t *)to)[rule->number[0]] ^= (uint8_t)(1U << (rule->number[1] & 7));
    gpu_seconds += (double)size / node.copy;
    return SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    return copy(__func__, to, (void *)(uintptr_t)to, from, size);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    return copy(__func__, from, to, (const void *)(uintptr_t)from, size);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    ENTER_CONTEXT();
    return copy(__func__, from, to, (const void *)(uintptr_t)from, size);
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char byte, size_t size) {
    ENTER_CONTEXT();
    if (accessible(at, size) != SUCCESS)
        return INVALID_VALUE;
    memset((void *)(uintptr_t)at, byte, size);
    return SUCCESS;
}

/* --- Kernels ------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuModuleLoadData(void **out, const char *text) {
    int architecture;
    ENTER_CONTEXT();
    const char *target = strstr(text, ".target sm_");
    if (strncmp(text, ".version ", strlen(".version ")) != 0 || target == NULL ||
        sscanf(target, ".target sm_%d", &architecture) != 1)
        return INVALID_PTX;
    if (architecture > node.major * 10 + node.minor)
        return NO_BINARY_FOR_GPU;
    struct module *module = calloc(1, sizeof *module);
    for (const char *at = text; (at = strstr(at, ".entry ")) != NULL && module->entries < MAX_ENTRIES;) {
        at += strlen(".entry ");
        sscanf(at, "%63[A-Za-z0-9_]", module->entry[module->entries++]);
    }
    *out = module;
    return SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(void **out, void *from, const char *name) {
    ENTER_CONTEXT();
    const struct module *module = from;
    for (int i = 0; i < module->entries; i++) {
        if (strcmp(module->entry[i], name) != 0)
            continue;
        struct function *function = calloc(1, sizeof *function);
        snprintf(function->name, sizeof function->name, "%s", name);
        function->allowed_shared = 48 << 10;
        *out = function;
        return SUCCESS;
    }
    return NOT_FOUND;
}

EXPORT CUresult cuFuncSetAttribute(void *of, int attribute, int value) {
    ENTER_CONTEXT();
    if (attribute != 8 || value > node.shared_per_sm - 1024) /* MAX_DYNAMIC_SHARED_SIZE_BYTES */
        return INVALID_VALUE;
    ((struct function *)of)->allowed_shared = (unsigned int)value;
    return SUCCESS;
}

EXPORT CUresult cuLaunchKernel(void *of, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                               unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream,
                               void **parameters, void **extra) {
    ENTER_CONTEXT();
    const struct function *function = of;
    if (stream != NULL || parameters != NULL || grid_y * grid_z * block_y * block_z != 1 || shared > function->allowed_shared)
        return INVALID_VALUE;
    if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != NULL) /* CU_LAUNCH_PARAM_BUFFER_POINTER, …_SIZE, …_END */
        return INVALID_VALUE;
    struct launch launch = {function->name, grid_x, block_x, shared, extra[1], *(const size_t *)extra[3]};
    return run_kernel(&launch);
}

/* --- Events: the GPU's clock when they were recorded ------------------------------------------------------------------ */

EXPORT CUresult cuEventCreate(void **out, unsigned int flags) {
    ENTER_CONTEXT();
    (void)flags;
    if (events == sizeof event / sizeof *event)
        return OUT_OF_MEMORY;
    *out = &event[events++];
    return SUCCESS;
}

EXPORT CUresult cuEventRecord(void *at, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    *(double *)at = gpu_seconds;
    return SUCCESS;
}

EXPORT CUresult cuEventSynchronize(void *at) {
    ENTER_CONTEXT();
    (void)at;
    return SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    ENTER_CONTEXT();
    *milliseconds = (float)((*(double *)to - *(double *)from) * 1e3);
    return SUCCESS;
}
