/* The entry points that last longer than a call: GPM samples and event sets. */
#include "node.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

struct nvmlGpmSample_st {
    int board;
    int gpu_instance; /* or WHOLE_GPU */
    double taken;     /* 0: not yet */
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *out) {
    ENTER(device);
    EXPECT_VERSION(out->version, NVML_GPM_SUPPORT_VERSION);
    out->isSupportedDevice = reading_of(device->board, READING_gpm_graphics_active) != NO;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out) {
    ENTER_NODE();
    *out = calloc(1, sizeof **out);
    return *out == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    ENTER_NODE();
    free(sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    ENTER(device);
    if (reading_of(device->board, READING_gpm_graphics_active) == NO)
        return not_supported();
    *sample = (struct nvmlGpmSample_st){device->board, WHOLE_GPU, monotonic_seconds()};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample) {
    ENTER(device);
    if (reading_of(device->board, READING_gpm_graphics_active) == NO)
        return not_supported();
    if (!has_gpu_instance(device->board, gpu_instance))
        return NVML_ERROR_INVALID_ARGUMENT;
    *sample = (struct nvmlGpmSample_st){device->board, (int)gpu_instance, monotonic_seconds()};
    return NVML_SUCCESS;
}

/* An instance has the shares of its GPU, less a hundredth for each step of its id, and no transfers of its own. */
static nvmlReturn_t answer_metric(int board, int gpu_instance, nvmlGpmMetric_t *metric) {
    static const enum reading table[] = {
        [NVML_GPM_METRIC_GRAPHICS_UTIL] = READING_gpm_graphics_active,
        [NVML_GPM_METRIC_SM_UTIL] = READING_gpm_sm_active,
        [NVML_GPM_METRIC_SM_OCCUPANCY] = READING_gpm_sm_occupancy,
        [NVML_GPM_METRIC_ANY_TENSOR_UTIL] = READING_gpm_tensor_active,
        [NVML_GPM_METRIC_DRAM_BW_UTIL] = READING_gpm_dram_active,
        [NVML_GPM_METRIC_PCIE_TX_PER_SEC] = READING_gpm_pcie_tx_mib,
        [NVML_GPM_METRIC_PCIE_RX_PER_SEC] = READING_gpm_pcie_rx_mib,
        [NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC] = READING_gpm_nvlink_rx_mib,
        [NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC] = READING_gpm_nvlink_tx_mib,
    };
    if (gpu_instance != WHOLE_GPU && metric->metricId >= NVML_GPM_METRIC_PCIE_TX_PER_SEC)
        return NVML_ERROR_NOT_SUPPORTED;
    long long reading = reading_of(board, CHOSEN(table, metric->metricId));
    if (reading == NO)
        return NVML_ERROR_NOT_SUPPORTED;
    metric->value = (double)reading;
    if (gpu_instance != WHOLE_GPU)
        metric->value -= gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *query) {
    ENTER_NODE();
    EXPECT_VERSION(query->version, NVML_GPM_METRICS_GET_VERSION);
    const struct nvmlGpmSample_st *before = query->sample1, *after = query->sample2;
    if (before->taken == 0 || after->taken <= before->taken || before->board != after->board ||
        before->gpu_instance != after->gpu_instance)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < query->numMetrics && i < COUNT(query->metrics); i++)
        query->metrics[i].nvmlReturn = answer_metric(after->board, after->gpu_instance, &query->metrics[i]);
    return NVML_SUCCESS;
}

/* --- Events ------------------------------------------------------------------------------------------------------- */

struct nvmlEventSet_st {
    atomic_uint boards; /* registered for Xids, a bit each */
    long long seen;     /* the sequence number of the last Xid that is no news any more */
    int changes;        /* inotify on the folder of the control file; -1: nothing will change */
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
    ENTER_NODE();
    nvmlEventSet_t set = calloc(1, sizeof *set);
    if (set == NULL)
        return NVML_ERROR_MEMORY;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", control_file());
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
    set->seen = last_xid();
    set->changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (slash == NULL || inotify_add_watch(set->changes, folder, IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE) < 0) {
        close(set->changes);
        set->changes = -1;
    }
    *out = set;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    ENTER_NODE();
    close(set->changes);
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    ENTER(device);
    long long supported = reading_of(device->board, READING_event_types);
    if (supported == NO || (types & ~(unsigned long long)supported) != 0)
        return not_supported();
    if ((types & nvmlEventTypeXidCriticalError) != 0)
        set->boards |= 1U << device->board;
    return NVML_SUCCESS;
}

/* False when the deadline has passed; else waits for a change of the control file, at most until then. */
static bool wait_for_change(const struct nvmlEventSet_st *set, double deadline) {
    char news[4096];
    double left = deadline - monotonic_seconds();
    if (left <= 0)
        return false;
    struct pollfd changes = {.fd = set->changes, .events = POLLIN};
    poll(&changes, 1, left > INT_MAX / 1000 ? INT_MAX : (int)(left * 1000) + 1);
    while (read(set->changes, news, sizeof news) > 0)
        ;
    return true;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms) {
    double deadline = monotonic_seconds() + timeoutms / 1000.0;
    do {
        ENTER_NODE();
        if (next_xid(set->boards, &set->seen, data))
            return NVML_SUCCESS;
    } while (wait_for_change(set, deadline));
    return NVML_ERROR_TIMEOUT;
}
