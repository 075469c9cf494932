/* What the node answers: the control file's values over the generation's, moving with time. */
#include "node.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const struct reading_row READING_ROWS[READINGS] = {
    {"", {NO, NO, NO, NO}, FIXED, 0},
#define READING(name, hopper, blackwell, ampere, volta, motion, amount)                                                \
    {#name, {hopper, blackwell, ampere, volta}, motion, amount},
#include "readings.def"
};
const struct link_row LINK_ROWS[LINK_READINGS] = {
    {"", {NO, NO, NO, NO}, 0},
#define LINK(name, hopper, blackwell, ampere, volta, rate) {#name, {hopper, blackwell, ampere, volta}, rate},
#include "readings.def"
};
const struct text_row TEXT_ROWS[TEXTS] = {
#define TEXT(name, hopper, blackwell, ampere, volta) {#name, {hopper, blackwell, ampere, volta}},
#include "readings.def"
};

struct node node;

static struct nvmlDevice_st handles[2][MAX_BOARDS][1 + MAX_MIG]; /* the second set for boards with other handles */

static void __attribute__((constructor)) number_handles(void) {
    for (int set = 0; set < 2; set++)
        for (int board = 0; board < MAX_BOARDS; board++)
            for (int place = 0; place <= MAX_MIG; place++)
                handles[set][board][place] = (struct nvmlDevice_st){board, place - 1};
}

bool is_handle(nvmlDevice_t device) {
    return device >= &handles[0][0][0] && device <= &handles[1][MAX_BOARDS - 1][MAX_MIG];
}

nvmlDevice_t handle_of(int board, int mig) { return &handles[node.board[board].renewed][board][mig + 1]; }

bool board_present(int board) { return board < node.boards && !node.board[board].vanished; }

double monotonic_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

double node_seconds(void) { return node.frozen ? 3600 : monotonic_seconds(); }

/* A triangle between -amount and +amount, once a minute, each board five seconds ahead of the one before. */
static long long wave(int board, long long amount) {
    double phase = (node_seconds() + 5.0 * board) / 60;
    phase -= (double)(long long)phase;
    double height = phase < 0.5 ? 4 * phase - 1 : 3 - 4 * phase;
    return (long long)(height * (double)amount);
}

static long long grown(long long rate) { return (long long)(node_seconds() * (double)rate); }

static long long sum_of_rows(int board, enum reading first, long long count) {
    long long sum = 0;
    for (long long row = first; row < (long long)first + count; row++) {
        long long value = reading_of(board, (enum reading)row);
        sum += value == NO ? 0 : value;
    }
    return sum;
}

unsigned int place_of(int board) {
    unsigned int place = 0;
    for (int other = 0; other < board; other++)
        place += board_present(other);
    return place;
}

static long long margin(int board) {
    long long most = reading_of(board, READING_temperature_gpu_max), now = reading_of(board, READING_temperature);
    return most == NO || now == NO ? NO : most - now;
}

long long reading_of(int board, enum reading reading) {
    const struct given *given = &node.board[board].reading[reading];
    const struct reading_row *row = &READING_ROWS[reading];
    long long value = given->is ? given->value : row->by_generation[node.generation];
    if (given->is || value == NO)
        return value;
    if (reading == READING_index)
        return place_of(board);
    if (reading == READING_temperature_margin)
        return margin(board);
    switch (row->motion) {
    case WAVE: return value + wave(board, row->amount);
    case RATE: return value + grown(row->amount);
    case SUM: return sum_of_rows(board, reading + 1, row->amount);
    case PER_GPU: return value + row->amount * board;
    case FIXED: break;
    }
    return value;
}

long long link_reading_of(int board, unsigned int link, enum link_reading reading) {
    if (link >= MAX_LINKS || (long long)link >= reading_of(board, READING_nvlink_links))
        return NO;
    const struct given *given = &node.board[board].link[link][reading];
    const struct link_row *row = &LINK_ROWS[reading];
    long long value = given->is ? given->value : row->by_generation[node.generation];
    return given->is || value == NO ? value : value + grown(row->rate);
}

long long link_sum_of(int board, enum link_reading reading) {
    long long sum = NO;
    for (unsigned int link = 0; link < MAX_LINKS; link++) {
        long long value = link_reading_of(board, link, reading);
        if (value != NO)
            sum = sum == NO ? value : sum + value;
    }
    return sum;
}

void text_of(int board, enum text text, char out[TEXT_SIZE]) {
    unsigned int bus = 0x1bU + 0x0dU * (unsigned int)board;
    if (*node.board[board].text[text] != '\0')
        memcpy(out, node.board[board].text[text], TEXT_SIZE);
    else
        snprintf(out, TEXT_SIZE, TEXT_ROWS[text].format[node.generation], bus);
}

const struct mig_instance *mig_instance_of(nvmlDevice_t device) {
    const struct board *board = &node.board[device->board];
    bool on = reading_of(device->board, READING_mig_mode) == NVML_FEATURE_ENABLED;
    return on && device->mig >= 0 && device->mig < board->migs ? &board->mig[device->mig] : NULL;
}

bool has_gpu_instance(int board, unsigned int gpu_instance) {
    for (int place = 0; place < node.board[board].migs; place++) {
        const struct mig_instance *mig = mig_instance_of(handle_of(board, place));
        if (mig != NULL && mig->gpu_instance == gpu_instance)
            return true;
    }
    return false;
}

static bool running(unsigned int pid) {
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool read = fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    fclose(file);
    return read && state != 'Z';
}

/* A context of the fake libcuda is there for as long as its process is. */
static unsigned int contexts_of(int wanted, unsigned int found, unsigned int room, nvmlProcessInfo_t *out) {
    DIR *folder = *node.contexts == '\0' ? NULL : opendir(node.contexts);
    if (folder == NULL)
        return found;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int board;
        unsigned int pid;
        if (sscanf(entry->d_name, "%d.%u", &board, &pid) != 2 || board != wanted || !running(pid))
            continue;
        if (found++ < room)
            out[found - 1] = (nvmlProcessInfo_t){pid, 526ULL << 20, UINT_MAX, UINT_MAX};
    }
    closedir(folder);
    return found;
}

/* Counts the processes on a GPU or MIG instance; writes as many as there is room for. */
unsigned int processes_of(nvmlDevice_t device, enum process_kind kind, unsigned int room, nvmlProcessInfo_t *out) {
    const struct board *board = &node.board[device->board];
    const struct mig_instance *mig = mig_instance_of(device);
    unsigned int found = 0;
    for (int i = 0; i < board->processes; i++) {
        const nvmlProcessInfo_t *process = &board->process[i];
        if (board->kind[i] != kind)
            continue;
        if (mig != NULL &&
            (process->gpuInstanceId != mig->gpu_instance || process->computeInstanceId != mig->compute_instance))
            continue;
        if (found++ < room)
            out[found - 1] = *process;
    }
    return kind == COMPUTE && mig == NULL ? contexts_of(device->board, found, room, out) : found;
}

long long last_xid(void) {
    long long last = 0;
    for (const struct xid *xid = node.xid; xid < node.xid + node.xids; xid++)
        last = xid->sequence > last ? xid->sequence : last;
    return last;
}

static const struct xid *first_xid_after(long long sequence) {
    const struct xid *first = NULL;
    for (const struct xid *xid = node.xid; xid < node.xid + node.xids; xid++)
        if (xid->sequence > sequence && (first == NULL || xid->sequence < first->sequence))
            first = xid;
    return first;
}

/* The first Xid after `seen` on one of these boards (a bit each). `seen` moves past all that was looked at. */
bool next_xid(unsigned int boards, long long *seen, nvmlEventData_t *out) {
    for (const struct xid *xid = first_xid_after(*seen); xid != NULL; xid = first_xid_after(*seen)) {
        *seen = xid->sequence;
        if ((boards >> xid->board & 1U) == 0)
            continue;
        *out = xid->data;
        out->device = handle_of(xid->board, WHOLE_GPU);
        return true;
    }
    return false;
}
