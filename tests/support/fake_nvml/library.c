/* The entry points of a libnvidia-ml.so.1 without a driver, as nvidia-ml-py resolves them: library, node, identity. */
#define _GNU_SOURCE
#include "node.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

atomic_int users;

/* The file that the environment names, or `control` beside the library: some processes are started without any environment. */
static const char *control_path(char *out, size_t size) {
    Dl_info info;
    const char *given = getenv("FAKE_NVML_CONTROL"), *slash;
    if (given != NULL || dladdr((void *)control_path, &info) == 0 || (slash = strrchr(info.dli_fname, '/')) == NULL)
        return given;
    snprintf(out, size, "%.*scontrol", (int)(slash + 1 - info.dli_fname), info.dli_fname);
    return out;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    char path[PATH_MAX];
    (void)flags;
    if (users == 0)
        follow_control_file(control_path(path, sizeof path));
    VISIT(__func__, NO_BOARD);
    users += visit.code == NVML_SUCCESS;
    return visit.code;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    ENTER_NODE();
    users--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request.",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "ECC is not supported with vGPU", "Insufficient Resources", "Frequency not supported",
        "Version mismatch between input/output structures of API", "Function deprecated",
        "System is not ready for the request", "GPU not found", "Invalid state",
    };
    return CHOSEN(texts, code) != NULL ? texts[code] : "Unknown Error";
}

static nvmlReturn_t copy(const char *text, char *out, size_t size) {
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t copy_text(int board, enum text text, char *out, size_t size) {
    char value[TEXT_SIZE];
    text_of(board, text, value);
    return copy(value, out, size);
}

/* What belongs to the node is read from board 0. */
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    ENTER_NODE();
    return copy_text(0, TEXT_driver_version, out, size);
}

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *out) {
    ENTER_NODE();
    ANSWER(&out->ccFeature, reading_of(0, READING_confidential_computing));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(unsigned int *out) {
    ENTER_NODE();
    ANSWER(out, reading_of(0, READING_confidential_ready));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int size) {
    ENTER_NODE();
    return copy_text(0, TEXT_nvml_version, out, size);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER_NODE();
    ANSWER(out, reading_of(0, READING_cuda_version));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    ENTER_NODE();
    *count = place_of(MAX_BOARDS);
    return NVML_SUCCESS;
}

/* --- A board by index, UUID or PCI address: faults asked for the call on this board strike once it is known ------- */

static bool has_place(int board, const void *place) { return place_of(board) == *(const unsigned int *)place; }

static bool has_uuid(int board, const void *uuid) {
    char own[TEXT_SIZE];
    text_of(board, TEXT_uuid, own);
    return strcmp(own, uuid) == 0;
}

static void pci_address_of(const char *text, unsigned int part[3]) {
    part[0] = part[1] = part[2] = 0;
    sscanf(text, "%x:%x:%x", &part[0], &part[1], &part[2]);
}

static bool has_pci_bus_id(int board, const void *wanted) {
    char own[TEXT_SIZE];
    unsigned int ours[3], theirs[3];
    text_of(board, TEXT_pci_bus_id, own);
    pci_address_of(own, ours);
    pci_address_of(wanted, theirs);
    return memcmp(ours, theirs, sizeof ours) == 0;
}

static nvmlReturn_t find(const char *call, bool (*fits)(int, const void *), const void *key, nvmlReturn_t none,
                         nvmlDevice_t *out) {
    int found = NO_BOARD;
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    {
        VISIT("", NO_BOARD); /* no entry point: nothing strikes yet */
        for (int board = MAX_BOARDS - 1; board >= 0; board--)
            if (board_present(board) && fits(board, key))
                found = board;
    }
    VISIT(call, found);
    if (visit.code != NVML_SUCCESS)
        return visit.code;
    if (found == NO_BOARD)
        return none;
    *out = handle_of(found, WHOLE_GPU);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    return find(__func__, has_place, &index, NVML_ERROR_INVALID_ARGUMENT, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return find(__func__, has_uuid, uuid, NVML_ERROR_NOT_FOUND, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    return find(__func__, has_pci_bus_id, bus_id, NVML_ERROR_NOT_FOUND, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int size) {
    ENTER_GPU_OR_MIG(device);
    const struct mig_instance *mig = mig_instance_of(device);
    char name[TEXT_SIZE + sizeof mig->profile + 8];
    text_of(device->board, TEXT_name, name);
    if (mig != NULL)
        sprintf(name + strlen(name), " MIG %s", mig->profile);
    return copy(name, out, size);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int size) {
    ENTER_GPU_OR_MIG(device);
    const struct mig_instance *mig = mig_instance_of(device);
    char uuid[64];
    if (mig == NULL)
        return copy_text(device->board, TEXT_uuid, out, size);
    snprintf(uuid, sizeof uuid, "MIG-%02x%02x%02x4d-8e15-5f3a-b7c2-604d9e1a83f7", (unsigned)device->board & 0xffU,
             mig->gpu_instance & 0xffU, mig->compute_instance & 0xffU);
    return copy(uuid, out, size);
}

#define TEXT_GETTER(call, text)                                                                                        \
    nvmlReturn_t call(nvmlDevice_t device, char *out, unsigned int size) {                                             \
        ENTER(device);                                                                                                 \
        return copy_text(device->board, TEXT_##text, out, size);                                                       \
    }
TEXT_GETTER(nvmlDeviceGetSerial, serial)
TEXT_GETTER(nvmlDeviceGetVbiosVersion, vbios)
TEXT_GETTER(nvmlDeviceGetInforomImageVersion, inforom)
TEXT_GETTER(nvmlDeviceGetBoardPartNumber, board_part)

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    ENTER(device);
    char bus_id[TEXT_SIZE];
    unsigned int at[3];
    text_of(device->board, TEXT_pci_bus_id, bus_id);
    pci_address_of(bus_id, at);
    *pci = (nvmlPciInfo_t){.domain = at[0], .bus = at[1], .device = at[2]};
    ANSWER(&pci->pciDeviceId, reading_of(device->board, READING_pci_device_id));
    ANSWER(&pci->pciSubSystemId, reading_of(device->board, READING_pci_subsystem_id));
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", at[0] & 0xffffU, at[1] & 0xffU,
             at[2] & 0xffU);
    return copy(bus_id, pci->busId, sizeof pci->busId);
}
