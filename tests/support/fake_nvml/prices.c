/* The CPU time that calls take of the driver of an H100: counted, and burnt where the control file says `prices`. */
#include "node.h"

#include <string.h>
#include <time.h>

static const struct {
    const char *call;
    long long microseconds;
} CALL_PRICES[] = {
#define PRICE(call, microseconds) {#call, microseconds},
#include "prices.def"
};
static const long long FIELD_PRICES[NVML_FI_MAX] = {
#define FIELD_PRICE(id, microseconds) [NVML_FI_DEV_##id] = microseconds,
#include "prices.def"
};

static _Thread_local bool supported; /* what the visit of this thread asks for, as far as it is known by now */

nvmlReturn_t not_supported(void) {
    supported = false;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Inside a visit that begins. */
long long price_of(const char *call, int board) {
    supported = true;
    for (size_t row = 0; row < COUNT(CALL_PRICES); row++)
        if (strcmp(call, CALL_PRICES[row].call) == 0)
            return CALL_PRICES[row].microseconds;
    return board >= 0 ? OTHER_PRICE : 0;
}

long long price_of_field(unsigned int field) { return CHOSEN(FIELD_PRICES, field); }

static atomic_llong counted;

/* For the process that loaded this library: the microseconds of CPU that its calls would have taken on an H100 by now. */
__attribute__((visibility("default"))) long long fakeNvmlPrices(void);
long long fakeNvmlPrices(void) { return counted; }

long long cpu_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Outside the visit: others may enter meanwhile. What the call took by itself is a part of its price. */
void pay(const struct visit *visit) {
    if (!supported)
        return;
    counted += visit->price;
    while (visit->burns && cpu_nanoseconds() < visit->entered + 1000 * visit->price)
        ;
}
