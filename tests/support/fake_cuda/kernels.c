/* What the kernels of `gpuwarden test` do, with the faults that the control file asks for. */
#include "gpu.h"

#include <stdio.h>
#include <string.h>

static const char *const MEMORY_ENTRIES[] = {"memory_write", "memory_verify", "memory_verify_write"};
static const struct {
    const char *entry;
    double cycles; /* of a loop: about what makes the rates measured on H100 */
} COMPUTE_ENTRIES[] = {{"int8", 3378}, {"bf16", 3448}, {"fp64", 1091}, {"alu", 1055}};

enum { LOOPS = 32, WARPS = 8, THREADS = 256, RECORDS = 16 };

struct memory_parameters {
    uint64_t base, count, seed;
    uint32_t kind, complement, down;
    uint64_t report;
};
struct report {
    uint64_t mismatches, recorded;
    struct {
        uint64_t offset;
        uint32_t expected, found;
    } record[RECORDS];
};
struct compute_parameters {
    uint64_t out, seed;
    uint32_t rounds, spare;
};
struct warp {
    uint32_t sm, checksum;
    uint64_t cycles, nanoseconds;
};

bool is_memory_kernel(const char *entry) {
    for (size_t i = 0; i < sizeof MEMORY_ENTRIES / sizeof *MEMORY_ENTRIES; i++)
        if (strcmp(entry, MEMORY_ENTRIES[i]) == 0)
            return true;
    return false;
}

/* --- Memory: support/pattern_model.py in C -------------------------------------------------------------------------------- */

static uint32_t mixed(uint32_t value, uint32_t addend) {
    value ^= value >> 16;
    value = value * 0x85EBCA6BU + addend;
    value ^= value >> 13;
    value *= 0xC2B2AE35U;
    return value ^ value >> 16;
}

static uint32_t word(uint64_t index, const struct memory_parameters *p, uint32_t complement) {
    static const uint32_t LANES[] = {0x00000000U, 0xA5A5A5A5U, 0x3C3C3C3CU, 0xF00FF00FU};
    const uint32_t odd = 0x9E3779B1U, low = (uint32_t)p->seed, high = (uint32_t)(p->seed >> 32);
    uint32_t value;
    if (p->kind == 0) {
        value = ((uint32_t)index + (uint32_t)(index >> 32) * odd) ^ low ^ high;
    } else {
        uint64_t unit = index / 4;
        unsigned int lane = index % 4;
        uint32_t hashed = mixed((uint32_t)unit ^ low, high + (uint32_t)(unit >> 32) * odd);
        value = (lane == 0 ? hashed : hashed << 8 * lane | hashed >> (32 - 8 * lane)) ^ LANES[lane];
    }
    return complement ? ~value : value;
}

/* After a kernel wrote: flips a bit at this offset once, or holds it at a value for good. */
static void damage(uint8_t *memory, uint64_t size) {
    for (struct rule *rule = node.rule; rule < node.rule + node.rules; rule++) {
        uint64_t offset = (uint64_t)rule->number[0];
        uint8_t bit = (uint8_t)(1U << (rule->number[1] & 7));
        if ((rule->action != FLIP && rule->action != STUCK) || offset >= size)
            continue;
        if (rule->action == STUCK)
            memory[offset] = rule->number[2] ? memory[offset] | bit : memory[offset] & (uint8_t)~bit;
        else if (!rule->struck)
            memory[offset] ^= bit, rule->struck = true;
    }
}

static CUresult run_memory(const char *entry, const struct memory_parameters *p) {
    uint64_t size = p->count * 16;
    if (p->base % 16 != 0 || accessible(p->base, size) != SUCCESS || accessible(p->report, sizeof(struct report)) != SUCCESS)
        return ILLEGAL_ADDRESS;
    uint32_t *memory = (uint32_t *)(uintptr_t)p->base;
    struct report *report = (struct report *)(uintptr_t)p->report;
    bool writes = strcmp(entry, "memory_verify") != 0, verifies = strcmp(entry, "memory_write") != 0;
    for (uint64_t step = 0; step < p->count * 4; step++) {
        uint64_t index = p->down ? p->count * 4 - 1 - step : step;
        uint32_t expected = word(index, p, p->complement);
        if (verifies && memory[index] != expected) {
            report->mismatches++;
            if (report->recorded++ < RECORDS) {
                report->record[report->recorded - 1].offset = index * 4;
                report->record[report->recorded - 1].expected = expected;
                report->record[report->recorded - 1].found = memory[index];
            }
        }
        if (writes)
            memory[index] = verifies ? ~expected : expected;
    }
    if (writes)
        damage((uint8_t *)memory, size);
    bool remote = owner_of(p->base) != current;
    gpu_seconds += (double)size * ((writes ? 1 / (remote ? node.peer : node.write) : 0) +
                                   (verifies ? 1 / (remote ? node.peer : node.verify) : 0));
    return SUCCESS;
}

/* --- Compute: the known results, made wrong and slow as asked --------------------------------------------------------- */

static uint32_t checksum(const char *entry, const struct compute_parameters *p) {
    for (int i = node.sums - 1; i >= 0; i--) /* the last that was given */
        if (strcmp(node.sum[i].entry, entry) == 0 && node.sum[i].seed == p->seed)
            return node.sum[i].value * p->rounds;
    return mixed((uint32_t)p->seed, p->rounds); /* of no meaning, but the same for every warp */
}

static bool means(const struct rule *rule, enum action action, const char *entry, int sm) {
    return rule->action == action && (strcmp(rule->name, "*") == 0 || strcmp(rule->name, entry) == 0) &&
           (rule->number[0] == ANY || rule->number[0] == sm);
}

/* The one warp of an SM in chunks FROM to TO of its kernel, counted from 0. */
static bool wrong(const char *entry, int sm, int warp) {
    long long chunk = calls_of(entry) - 1;
    for (const struct rule *rule = node.rule; rule < node.rule + node.rules; rule++)
        if (means(rule, WRONG, entry, sm) && warp == 3 && chunk >= rule->number[1] && chunk < rule->number[2])
            return true;
    return false;
}

static double slower(const char *entry, int sm) {
    double factor = 1;
    for (const struct rule *rule = node.rule; rule < node.rule + node.rules; rule++)
        if (means(rule, SLOW, entry, sm) && calls_of(entry) >= rule->number[2])
            factor *= 1 + (double)rule->number[1] / 1000 / 100;
    return factor;
}

bool silent(const char *entry) {
    for (const struct rule *rule = node.rule; rule < node.rule + node.rules; rule++)
        if (rule->action == SILENT && strcmp(rule->name, entry) == 0 && calls_of(entry) >= rule->number[0])
            return true;
    return false;
}

static CUresult run_compute(const char *entry, double usual, const struct launch *launch) {
    const struct compute_parameters *p = launch->parameters;
    if (accessible(p->out, (size_t)launch->grid * WARPS * sizeof(struct warp)) != SUCCESS)
        return ILLEGAL_ADDRESS;
    if (silent(entry))
        return SUCCESS;
    struct warp *out = (struct warp *)(uintptr_t)p->out;
    int sms = node.covered < node.sms ? node.covered : node.sms;
    int beside = 2 * (int)launch->shared > node.shared_per_sm ? 1 : 2; /* blocks on one SM at once */
    double longest = 0;
    for (int block = 0; block < (int)launch->grid; block++) {
        int sm = block / beside % sms;
        double loop = usual * slower(entry, sm), cycles = loop * LOOPS * p->rounds, seconds = cycles / node.clock / 1e6;
        longest = seconds > longest ? seconds : longest;
        for (int warp = 0; warp < WARPS; warp++)
            out[block * WARPS + warp] = (struct warp){
                .sm = (uint32_t)sm,
                .checksum = checksum(entry, p) ^ (wrong(entry, sm, warp) ? 1U << 7 : 0),
                .cycles = (uint64_t)cycles,
                .nanoseconds = (uint64_t)(seconds * 1e9),
            };
    }
    gpu_seconds += longest;
    return SUCCESS;
}

CUresult run_kernel(const struct launch *launch) {
    CUresult result = strike(launch->entry);
    if (result != SUCCESS)
        return result;
    if (launch->block != THREADS || launch->grid == 0 || launch->grid > MAX_BLOCKS)
        return INVALID_VALUE;
    if (is_memory_kernel(launch->entry)) {
        if (launch->size != sizeof(struct memory_parameters) || launch->grid != 4U * (unsigned int)node.sms)
            return INVALID_VALUE;
        return run_memory(launch->entry, launch->parameters);
    }
    for (size_t i = 0; i < sizeof COMPUTE_ENTRIES / sizeof *COMPUTE_ENTRIES; i++)
        if (strcmp(launch->entry, COMPUTE_ENTRIES[i].entry) == 0)
            return launch->size == sizeof(struct compute_parameters) ? run_compute(launch->entry, COMPUTE_ENTRIES[i].cycles, launch)
                                                                     : INVALID_VALUE;
    return INVALID_VALUE;
}
