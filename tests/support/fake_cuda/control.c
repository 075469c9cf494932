/* Reads the control file, once, and strikes calls as it asks: with an error, a pause, or for ever. */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct node node = {
    .memory = 32 << 20, .context = 512 << 10, .largest = LLONG_MAX, .sms = 132, .covered = MAX_SMS, .major = 9, .shared_per_sm = 228 << 10,
    .clock = 1850, .write = 3.18e12, .verify = 3.05e12, .copy = 55e9, .peer = 380e9,
};

static int line_number;

static void __attribute__((noreturn)) refuse(const char *what, const char *word) {
    fprintf(stderr, "fake_cuda: line %d: %s '%s'\n", line_number, what, word == NULL ? "" : word);
    abort();
}

static double number(const char *word) {
    char *end;
    if (word == NULL)
        refuse("a number is missing", word);
    double value = strtod(word, &end);
    if (end == word || *end != '\0')
        refuse("no number:", word);
    return value;
}

static long long whole(const char *word) { return word == NULL ? ANY : (long long)strtoull(word, NULL, 0); }

static void copy_word(char *out, size_t size, const char *word) {
    if (word == NULL || strlen(word) >= size)
        refuse("missing or too long:", word);
    strcpy(out, word);
}

/* `name` and up to three numbers, `*` being ANY; a missing one is `missing`. */
static void rule(enum action action, const char *name, char **word, long long missing) {
    if (node.rules == MAX_RULES)
        refuse("too many rules:", name);
    struct rule *rule = &node.rule[node.rules++];
    *rule = (struct rule){.action = action};
    copy_word(rule->name, sizeof rule->name, name);
    for (int i = 0, given = 1; i < 3; i++) {
        given = given && word[i] != NULL;
        rule->number[i] = !given ? missing : strcmp(word[i], "*") == 0 ? ANY : (long long)(number(word[i]) * (action == SLOW && i == 1 ? 1000 : 1));
    }
}

static void sum(char **word) {
    if (node.sums == MAX_SUMS)
        refuse("too many sums:", word[1]);
    struct checksum *sum = &node.sum[node.sums++];
    copy_word(sum->entry, sizeof sum->entry, word[1]);
    sum->seed = (uint64_t)whole(word[2]);
    sum->value = (uint32_t)whole(word[3]);
}

static void apply(char **word) {
    const char *name = word[0];
#define IS(text) (strcmp(name, text) == 0)
    if (IS("gpu") && node.gpus < MAX_GPUS) copy_word(node.uuid[node.gpus++], sizeof node.uuid[0], word[1]);
    else if (IS("memory")) node.memory = whole(word[1]);
    else if (IS("context")) node.context = whole(word[1]);
    else if (IS("largest")) node.largest = whole(word[1]);
    else if (IS("sms")) node.sms = (int)number(word[1]);
    else if (IS("cover")) node.covered = (int)number(word[1]);
    else if (IS("capability")) node.major = (int)number(word[1]), node.minor = (int)number(word[2]);
    else if (IS("shared_per_sm")) node.shared_per_sm = (int)number(word[1]);
    else if (IS("clock")) node.clock = number(word[1]);
    else if (IS("write_speed")) node.write = number(word[1]);
    else if (IS("verify_speed")) node.verify = number(word[1]);
    else if (IS("copy_speed")) node.copy = number(word[1]);
    else if (IS("peer_speed")) node.peer = number(word[1]);
    else if (IS("no_peers")) node.no_peers = true;
    else if (IS("integrated")) node.integrated = true;
    else if (IS("log")) copy_word(node.log, sizeof node.log, word[1]);
    else if (IS("contexts")) copy_word(node.contexts, sizeof node.contexts, word[1]);
    else if (IS("checksum")) sum(word);
    else if (IS("error")) rule(ERROR, word[1], word + 2, 1);
    else if (IS("hang")) rule(HANG, word[1], word + 2, 1);
    else if (IS("sleep")) rule(SLEEP, word[1], word + 2, 1);
    else if (IS("flip")) rule(FLIP, "memory_write", word + 1, 0);
    else if (IS("stuck")) rule(STUCK, "memory_write", word + 1, 0);
    else if (IS("flip_copy")) rule(FLIP_COPY, word[1], word + 2, 0);
    else if (IS("wrong")) rule(WRONG, word[1], word + 2, LLONG_MAX);
    else if (IS("slow")) rule(SLOW, word[1], word + 2, 0);
    else if (IS("silent")) rule(SILENT, word[1], word + 2, 1);
    else if (IS("partner")) rule(PARTNER, word[1], word + 2, 1);
    else refuse("no directive:", name);
}

/* The file that the environment names, or `control` beside the library. */
static void control_path(char *out, size_t size) {
    Dl_info info;
    const char *given = getenv("FAKE_CUDA_CONTROL");
    if (given != NULL || dladdr((void *)read_control_file, &info) == 0) {
        snprintf(out, size, "%s", given == NULL ? "" : given);
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(out, size, "%.*scontrol", slash == NULL ? 0 : (int)(slash + 1 - info.dli_fname), info.dli_fname);
}

void read_control_file(void) {
    char path[PATH_MAX], line[512];
    control_path(path, sizeof path);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        refuse("no control file:", path);
    while (fgets(line, sizeof line, file) != NULL) {
        char *word[8] = {NULL}, *rest = line;
        line_number++;
        for (int i = 0; i < 7 && (word[i] = strtok_r(rest, " \t\n", &rest)) != NULL; i++)
            ;
        if (word[0] != NULL && *word[0] != '#')
            apply(word);
    }
    fclose(file);
}

/* --- Calls, counted by name -------------------------------------------------------------------------------------- */

static struct {
    char name[NAME];
    long long calls;
} counted[128];

static long long *count_of(const char *name) {
    int i = 0;
    while (*counted[i].name != '\0' && strcmp(counted[i].name, name) != 0)
        i++;
    snprintf(counted[i].name, sizeof counted[i].name, "%s", name);
    return &counted[i].calls;
}

long long calls_of(const char *name) { return *count_of(name); }

static void appear(const struct rule *rule) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%lld.%lld", node.contexts, rule->number[1], rule->number[2]);
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file >= 0)
        close(file);
}

CUresult strike(const char *name) {
    static bool started;
    if (!started)
        read_control_file();
    started = true;
    long long call = ++*count_of(name);
    CUresult result = SUCCESS;
    for (struct rule *rule = node.rule; rule < node.rule + node.rules; rule++) {
        if (strcmp(rule->name, name) != 0)
            continue;
        if (rule->action == ERROR && call >= rule->number[1])
            result = (CUresult)rule->number[0];
        if (rule->action == PARTNER && call == rule->number[0])
            appear(rule);
        if (rule->action == SLEEP && call >= rule->number[1])
            usleep((useconds_t)rule->number[0]);
        while (rule->action == HANG && call >= rule->number[0])
            pause();
    }
    return result;
}
