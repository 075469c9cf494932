/* What happens to a call before it is answered: it fails, is slow, hangs or crashes, as the control file asks. */
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* guards everything below, and `node` */
static char path[PATH_MAX];
static struct stat loaded;   /* the control file as it was when last read */
static unsigned int version; /* counts how often it was read */

struct effects {
    nvmlReturn_t code;
    long long microseconds;
    bool hangs, hard, crashes;
    unsigned int version;
};

void follow_control_file(const char *wanted) {
    pthread_rwlock_wrlock(&lock);
    snprintf(path, sizeof path, "%s", wanted == NULL ? "" : wanted);
    memset(&loaded, 0xff, sizeof loaded); /* like no file there is, nor like none */
    pthread_rwlock_unlock(&lock);
}

const char *control_file(void) { return path; }

static bool changed(const struct stat *now) {
    return now->st_ino != loaded.st_ino || now->st_size != loaded.st_size ||
           now->st_mtim.tv_sec != loaded.st_mtim.tv_sec || now->st_mtim.tv_nsec != loaded.st_mtim.tv_nsec;
}

static void refresh(void) {
    struct stat now;
    if (stat(path, &now) != 0)
        memset(&now, 0, sizeof now);
    pthread_rwlock_rdlock(&lock);
    bool stale = changed(&now);
    pthread_rwlock_unlock(&lock);
    if (!stale)
        return;
    pthread_rwlock_wrlock(&lock);
    if (changed(&now)) {
        read_control_file(path);
        loaded = now;
        version++;
    }
    pthread_rwlock_unlock(&lock);
}

static bool first_to_create(const char *marker) {
    int file = open(marker, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    return file >= 0 && close(file) == 0;
}

/* Later rules win over earlier ones. */
static struct effects effects_on(const char *call, int board) {
    struct effects effects = {.code = NVML_SUCCESS, .version = version};
    bool entry_point = strncmp(call, "nvml", 4) == 0;
    for (const struct rule *rule = node.rule; rule < node.rule + node.rules; rule++) {
        if (rule->board != ANY_BOARD && rule->board != board)
            continue;
        if (strcmp(rule->call, call) != 0 && !(entry_point && strcmp(rule->call, "*") == 0))
            continue;
        if (*rule->once != '\0' && !first_to_create(rule->once))
            continue;
        switch (rule->action) {
        case ERROR: effects.code = (nvmlReturn_t)rule->argument; break;
        case SLOW: effects.microseconds = rule->argument; break;
        case HANG: effects.hangs = true; break;
        case HANG_HARD: effects.hangs = effects.hard = true; break;
        case CRASH: effects.crashes = true; break;
        }
    }
    return effects;
}

static struct effects effects_now_on(const char *call, int board) {
    refresh();
    pthread_rwlock_rdlock(&lock);
    struct effects effects = effects_on(call, board);
    pthread_rwlock_unlock(&lock);
    return effects;
}

static void sleep_for(long long microseconds) {
    struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* Blocks until a changed control file no longer requires it. A hard hang ignores SIGTERM in the whole process: blocked
 * in this thread alone, the signal would end the process through any other. */
static struct effects hang(const char *call, int board, struct effects effects) {
    void (*before)(int) = effects.hard ? signal(SIGTERM, SIG_IGN) : SIG_ERR;
    while (effects.hangs) {
        sleep_for(5000);
        refresh();
        pthread_rwlock_rdlock(&lock);
        if (version != effects.version)
            effects = effects_on(call, board);
        pthread_rwlock_unlock(&lock);
    }
    if (before != SIG_ERR)
        signal(SIGTERM, before);
    return effects;
}

struct visit enter(const char *call, int board) {
    long long entered = cpu_nanoseconds();
    struct effects effects = effects_now_on(call, board);
    if (effects.microseconds > 0)
        sleep_for(effects.microseconds);
    if (effects.crashes)
        raise(SIGSEGV);
    if (effects.hangs)
        effects = hang(call, board, effects);
    pthread_rwlock_rdlock(&lock);
    if (effects.code == NVML_SUCCESS && board >= 0 && !board_present(board))
        effects.code = NVML_ERROR_GPU_IS_LOST;
    return (struct visit){effects.code, price_of(call, board), node.prices, entered};
}

void leave(struct visit *visit) {
    pthread_rwlock_unlock(&lock);
    if (visit->code == NVML_SUCCESS)
        pay(visit);
}

nvmlReturn_t field_fault(int board, unsigned int field) {
    char call[32];
    snprintf(call, sizeof call, "field:%u", field);
    return effects_on(call, board).code;
}
