/* The entry points that read a GPU: one reading, a structure of them, ECC, NVLink, field values. */
#include "node.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* `call(device, out)` gives one reading. */
#define GETTER(call, type, reading)                                                                                    \
    nvmlReturn_t call(nvmlDevice_t device, type *out) {                                                                \
        ENTER(device);                                                                                                 \
        ANSWER(out, reading_of(device->board, READING_##reading));                                                     \
        return NVML_SUCCESS;                                                                                           \
    }
GETTER(nvmlDeviceGetIndex, unsigned int, index)
GETTER(nvmlDeviceGetMinorNumber, unsigned int, minor)
GETTER(nvmlDeviceGetPowerUsage, unsigned int, power_usage_mw)
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned int, power_limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, power_default_limit_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, power_enforced_limit_mw)
GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj)
GETTER(nvmlDeviceGetPerformanceState, nvmlPstates_t, performance_state)
GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, clock_event_reasons)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, clock_event_reasons)
GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, clock_event_reasons_supported)
GETTER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, retired_pages_pending)
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, pcie_replays)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, pcie_generation)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, pcie_generation_max)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, pcie_width_max)
GETTER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, persistence_mode)
GETTER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, compute_mode)
GETTER(nvmlDeviceGetInforomConfigurationChecksum, unsigned int, inforom_checksum)
GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long, event_types)
GETTER(nvmlDeviceGetModuleId, unsigned int, module_id)
GETTER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
GETTER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, virtualization_mode)

/* `call(device, one, other)` gives two. */
#define PAIR_GETTER(call, type, first, second)                                                                         \
    nvmlReturn_t call(nvmlDevice_t device, type *one, type *other) {                                                   \
        ENTER(device);                                                                                                 \
        ANSWER(one, reading_of(device->board, READING_##first));                                                       \
        ANSWER(other, reading_of(device->board, READING_##second));                                                    \
        return NVML_SUCCESS;                                                                                           \
    }
PAIR_GETTER(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, power_min_limit_mw, power_max_limit_mw)
PAIR_GETTER(nvmlDeviceGetEccMode, nvmlEnableState_t, ecc_mode, ecc_mode_pending)
PAIR_GETTER(nvmlDeviceGetMigMode, unsigned int, mig_mode, mig_mode_pending)
PAIR_GETTER(nvmlDeviceGetGspFirmwareMode, unsigned int, gsp_mode, gsp_mode_default)
PAIR_GETTER(nvmlDeviceGetEncoderUtilization, unsigned int, utilization_encoder, sampling_period_us)
PAIR_GETTER(nvmlDeviceGetDecoderUtilization, unsigned int, utilization_decoder, sampling_period_us)

/* `call(device, choice, out)` gives the one of these readings that stands at the place `choice`. */
#define CHOICE_GETTER(call, choice_type, type, ...)                                                                    \
    nvmlReturn_t call(nvmlDevice_t device, choice_type choice, type *out) {                                            \
        static const enum reading table[] = {__VA_ARGS__};                                                             \
        ENTER(device);                                                                                                 \
        ANSWER(out, reading_of(device->board, CHOSEN(table, choice)));                                                 \
        return NVML_SUCCESS;                                                                                           \
    }
CHOICE_GETTER(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t, unsigned int, READING_temperature)
CHOICE_GETTER(nvmlDeviceGetTemperatureThreshold, nvmlTemperatureThresholds_t, unsigned int,
              READING_temperature_shutdown, READING_temperature_slowdown, READING_temperature_memory_max,
              READING_temperature_gpu_max)
CHOICE_GETTER(nvmlDeviceGetClockInfo, nvmlClockType_t, unsigned int, READING_clock_graphics_mhz, READING_clock_sm_mhz,
              READING_clock_memory_mhz, READING_clock_video_mhz)
CHOICE_GETTER(nvmlDeviceGetMaxClockInfo, nvmlClockType_t, unsigned int, READING_clock_graphics_max_mhz,
              READING_clock_sm_max_mhz, READING_clock_memory_max_mhz, READING_clock_video_max_mhz)
CHOICE_GETTER(nvmlDeviceGetApplicationsClock, nvmlClockType_t, unsigned int, READING_clock_graphics_application_mhz,
              READING_clock_sm_application_mhz, READING_clock_memory_application_mhz)

/* `call(device, out)` fills a structure. */
#define FILLER(call, type, ...)                                                                                        \
    nvmlReturn_t call(nvmlDevice_t device, type *out) {                                                                \
        ENTER(device);                                                                                                 \
        __VA_ARGS__;                                                                                                   \
        return NVML_SUCCESS;                                                                                           \
    }
#define FILL(member, reading) ANSWER(&out->member, reading_of(device->board, READING_##reading))

FILLER(nvmlDeviceGetTemperatureV, nvmlTemperature_t,
       EXPECT_VERSION(out->version, nvmlTemperature_v1);
       FILL(temperature, temperature))
FILLER(nvmlDeviceGetMarginTemperature, nvmlMarginTemperature_t,
       EXPECT_VERSION(out->version, nvmlMarginTemperature_v1);
       FILL(marginTemperature, temperature_margin))
FILLER(nvmlDeviceGetUtilizationRates, nvmlUtilization_t,
       if (reading_of(device->board, READING_mig_mode) == NVML_FEATURE_ENABLED) return not_supported();
       FILL(gpu, utilization_gpu);
       FILL(memory, utilization_memory))
FILLER(nvmlDeviceGetRowRemapperHistogram, nvmlRowRemapperHistogramValues_t,
       FILL(max, remap_banks_max);
       FILL(high, remap_banks_high);
       FILL(partial, remap_banks_partial);
       FILL(low, remap_banks_low);
       FILL(none, remap_banks_none))
FILLER(nvmlDeviceGetRepairStatus, nvmlRepairStatus_t,
       EXPECT_VERSION(out->version, nvmlRepairStatus_v1);
       FILL(bChannelRepairPending, repair_channel_pending);
       FILL(bTpcRepairPending, repair_tpc_pending))
FILLER(nvmlDeviceGetUnrepairableMemoryFlag_v1, nvmlUnrepairableMemoryStatus_v1_t, /* it has no version */
       FILL(bUnrepairableMemory, memory_unrepairable))
FILLER(nvmlDeviceGetSramEccErrorStatus, nvmlEccSramErrorStatus_t,
       EXPECT_VERSION(out->version, nvmlEccSramErrorStatus_v1);
       *out = (nvmlEccSramErrorStatus_t){.version = nvmlEccSramErrorStatus_v1};
       FILL(volatileCor, ecc_corrected_volatile_sram);
       FILL(volatileUncSecDed, ecc_uncorrected_volatile_sram);
       FILL(aggregateCor, ecc_corrected_aggregate_sram);
       FILL(aggregateUncSecDed, ecc_uncorrected_aggregate_sram);
       FILL(bThresholdExceeded, sram_threshold_exceeded))
FILLER(nvmlDeviceGetGpuFabricInfoV, nvmlGpuFabricInfoV_t,
       if (out->version != nvmlGpuFabricInfo_v2) EXPECT_VERSION(out->version, nvmlGpuFabricInfo_v3);
       FILL(clusterUuid[15], fabric_in_cluster);
       FILL(status, fabric_status);
       FILL(cliqueId, fabric_clique);
       FILL(state, fabric_state);
       FILL(healthMask, fabric_health_mask);
       if (out->version == nvmlGpuFabricInfo_v3) FILL(healthSummary, fabric_health_summary))
FILLER(nvmlDeviceGetGpuFabricInfo, nvmlGpuFabricInfo_t, /* it has no version */
       FILL(clusterUuid[15], fabric_in_cluster);
       FILL(status, fabric_status);
       FILL(cliqueId, fabric_clique);
       FILL(state, fabric_state))
FILLER(nvmlDeviceGetPlatformInfo, nvmlPlatformInfo_t,
       EXPECT_VERSION(out->version, nvmlPlatformInfo_v2);
       char serial[TEXT_SIZE];
       text_of(device->board, TEXT_chassis_serial, serial);
       memcpy(out->chassisSerialNumber, serial, 13);
       FILL(slotNumber, chassis_slot);
       FILL(trayIndex, chassis_tray);
       FILL(moduleId, module_id))

nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device) {
    ENTER(device);
    unsigned int valid;
    ANSWER(&valid, reading_of(device->board, READING_inforom_valid));
    return valid ? NVML_SUCCESS : NVML_ERROR_CORRUPTED_INFOROM;
}

/* What is licensed is the first of two features, or nothing is to be licensed. */
FILLER(nvmlDeviceGetGridLicensableFeatures_v4, nvmlGridLicensableFeatures_t,
       *out = (nvmlGridLicensableFeatures_t){.licensableFeaturesCount = 2};
       out->gridLicensableFeatures[0].featureCode = NVML_GRID_LICENSE_FEATURE_CODE_VGPU;
       out->gridLicensableFeatures[1].featureCode = NVML_GRID_LICENSE_FEATURE_CODE_COMPUTE;
       FILL(isGridLicenseSupported, vgpu_license);
       FILL(gridLicensableFeatures[0].featureState, vgpu_license))

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *out) {
    static const enum reading table[] = {READING_violation_power_ns,           READING_violation_thermal_ns,
                                         READING_violation_sync_boost_ns,      READING_violation_board_limit_ns,
                                         READING_violation_low_utilization_ns, READING_violation_reliability_ns};
    ENTER(device);
    ANSWER(&out->violationTime, reading_of(device->board, CHOSEN(table, policy)));
    out->referenceTime = (unsigned long long)(node_seconds() * 1e6);
    return NVML_SUCCESS;
}

/* --- ECC, retired pages, remapped rows ---------------------------------------------------------------------------- */

/* `offset` is the place in an ECC block of readings.def: 0 the total. */
static long long ecc_reading(int board, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter, int offset) {
    enum { BLOCK = READING_ecc_uncorrected_volatile - READING_ecc_corrected_volatile };
    if ((unsigned int)error >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned int)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NO;
    return reading_of(board, READING_ecc_corrected_volatile + BLOCK * ((int)counter * 2 + (int)error) + offset);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                         unsigned long long *out) {
    ENTER(device);
    ANSWER(out, ecc_reading(device->board, error, counter, 0));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                             unsigned long long *out) {
    static const int offset[] = {[NVML_MEMORY_LOCATION_L1_CACHE] = 1,       [NVML_MEMORY_LOCATION_L2_CACHE] = 2,
                                 [NVML_MEMORY_LOCATION_DRAM] = 3,           [NVML_MEMORY_LOCATION_REGISTER_FILE] = 4,
                                 [NVML_MEMORY_LOCATION_TEXTURE_MEMORY] = 5, [NVML_MEMORY_LOCATION_SRAM] = 6};
    ENTER(device);
    int chosen = CHOSEN(offset, location);
    ANSWER(out, chosen == 0 ? NO : ecc_reading(device->board, error, counter, chosen));
    return NVML_SUCCESS;
}

static nvmlReturn_t retired_pages(int board, nvmlPageRetirementCause_t cause, unsigned int *count,
                                  unsigned long long *addresses, unsigned long long *times) {
    static const enum reading table[] = {READING_retired_pages_single_bit, READING_retired_pages_double_bit};
    unsigned int room = *count;
    ANSWER(count, reading_of(board, CHOSEN(table, cause)));
    if (*count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int page = 0; page < *count; page++) {
        addresses[page] = 0x1000ULL * (page + 1);
        if (times != NULL)
            times[page] = 1700000000ULL + page;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses) {
    ENTER(device);
    return retired_pages(device->board, cause, count, addresses, NULL);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                          unsigned long long *addresses, unsigned long long *times) {
    ENTER(device);
    return retired_pages(device->board, cause, count, addresses, times);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failure) {
    ENTER(device);
    ANSWER(correctable, reading_of(device->board, READING_remapped_rows_correctable));
    ANSWER(uncorrectable, reading_of(device->board, READING_remapped_rows_uncorrectable));
    ANSWER(pending, reading_of(device->board, READING_remapped_rows_pending));
    ANSWER(failure, reading_of(device->board, READING_remapped_rows_failure));
    return NVML_SUCCESS;
}

/* --- NVLink ------------------------------------------------------------------------------------------------------- */

#define LINK_GETTER(call, type, reading)                                                                               \
    nvmlReturn_t call(nvmlDevice_t device, unsigned int link, type *out) {                                             \
        ENTER(device);                                                                                                 \
        if (link >= NVML_NVLINK_MAX_LINKS)                                                                             \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
        ANSWER(out, link_reading_of(device->board, link, LINK_##reading));                                             \
        return NVML_SUCCESS;                                                                                           \
    }
LINK_GETTER(nvmlDeviceGetNvLinkState, nvmlEnableState_t, active)
LINK_GETTER(nvmlDeviceGetNvLinkVersion, unsigned int, version)
LINK_GETTER(nvmlDeviceGetNvLinkRemoteDeviceType, nvmlIntNvLinkDeviceType_t, remote_type)

/* Every link leads to one of four switches. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    static const unsigned int bus[] = {0x05, 0x06, 0x85, 0x86};
    long long active;
    ENTER(device);
    if (link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    ANSWER(&active, link_reading_of(device->board, link, LINK_active));
    (void)active;
    *pci = (nvmlPciInfo_t){.bus = bus[link % 4]};
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", bus[link % 4]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *out) {
    static const enum link_reading table[] = {LINK_replay_errors, LINK_recovery_errors, LINK_crc_flit_errors,
                                              LINK_crc_data_errors, LINK_ecc_data_errors};
    ENTER(device);
    if (link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    ANSWER(out, link_reading_of(device->board, link, CHOSEN(table, counter)));
    return NVML_SUCCESS;
}

/* --- Field values ------------------------------------------------------------------------------------------------- */

enum value_type {
    UINT = NVML_VALUE_TYPE_UNSIGNED_INT,
    ULL = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    SINT = NVML_VALUE_TYPE_SIGNED_INT,
};
enum scope { GPU, ONE, EITHER, ALL };

static const struct field {
    enum value_type type;
    enum scope scope;
    unsigned int reading; /* enum reading for scope GPU, else enum link_reading */
} FIELDS[NVML_FI_MAX] = {
#define FIELD(id, type, reading) [NVML_FI_DEV_##id] = {type, GPU, READING_##reading},
#define LINK_FIELD(id, type, reading, scope) [NVML_FI_DEV_##id] = {type, scope, LINK_##reading},
#include "fields.def"
};

static long long field_reading(int board, const struct field *field, unsigned int link) {
    if (field->scope == GPU)
        return reading_of(board, (enum reading)field->reading);
    if (field->scope == ALL || (field->scope == EITHER && link == UINT_MAX))
        return link_sum_of(board, (enum link_reading)field->reading);
    return link_reading_of(board, link, (enum link_reading)field->reading);
}

static nvmlReturn_t answer_field(int board, nvmlFieldValue_t *value) {
    if (value->fieldId >= NVML_FI_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct field *field = &FIELDS[value->fieldId];
    nvmlReturn_t fault = field_fault(board, value->fieldId);
    if (fault != NVML_SUCCESS)
        return fault;
    value->valueType = (nvmlValueType_t)field->type;
    long long reading = field_reading(board, field, value->scopeId);
    if (reading == NO) /* of this field, not of the call */
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->type) {
    case UINT: ANSWER(&value->value.uiVal, reading); break;
    case SINT: ANSWER(&value->value.siVal, reading); break;
    default: ANSWER(&value->value.ullVal, reading); break;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    ENTER(device);
    for (nvmlFieldValue_t *value = values; value < values + count; value++) {
        value->timestamp = (long long)time(NULL) * 1000000;
        value->latencyUsec = 1;
        value->nvmlReturn = answer_field(device->board, value);
        visit.price += value->nvmlReturn == NVML_SUCCESS ? price_of_field(value->fieldId) : 0;
    }
    return NVML_SUCCESS;
}
