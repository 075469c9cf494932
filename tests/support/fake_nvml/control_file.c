/* Reads the control file: one directive a line, its grammar in fake_nvml_library.py. */
#include "node.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *reading_from;
static int line_number;

static void __attribute__((noreturn, format(printf, 1, 2))) refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "fake_nvml: %s: line %d: ", reading_from, line_number);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    abort();
}

static long long number(const char *word, long long low, long long high) {
    char *end;
    errno = 0;
    long long value = *word == '-' ? strtoll(word, &end, 0) : (long long)strtoull(word, &end, 0);
    if (end == word || *end != '\0' || errno != 0 || value < low || value > high)
        refuse("'%s' is not a number from %lld to %lld", word, low, high);
    return value;
}

static struct given given(const char *word) {
    return (struct given){true, strcmp(word, "none") == 0 ? NO : number(word, LLONG_MIN, LLONG_MAX)};
}

static unsigned int instance_id(const char *word) {
    return word == NULL ? UINT_MAX : (unsigned int)number(word, 0, 127); /* NVML's "no instance" is UINT_MAX */
}

static void copy_word(char *out, size_t size, const char *word) {
    if (strlen(word) >= size)
        refuse("'%s' is too long", word);
    strcpy(out, word);
}

static int board_number(const char *word) {
    return strcmp(word, "*") == 0 ? ANY_BOARD : (int)number(word, 0, MAX_BOARDS - 1);
}

/* Every row of `rows` starts with its name. */
static size_t row_named(const char *word, const void *rows, size_t count, size_t size) {
    for (size_t row = 0; row < count; row++)
        if (strcmp(word, *(const char *const *)((const char *)rows + row * size)) == 0)
            return row;
    refuse("'%s' is not known here", word);
}
#define ROW_NAMED(word, rows) row_named(word, rows, COUNT(rows), sizeof *(rows))

static void *next_of(void *rows, size_t size, int room, int *used) {
    if (*used == room)
        refuse("no room for more than %d of these", room);
    return (char *)rows + size * (size_t)(*used)++;
}
#define NEXT_OF(rows, used) next_of(rows, sizeof *(rows), COUNT(rows), used)

/* Opens a loop over the numbers that `word` means: one, or with `*` all below `limit`. */
#define EACH(index, word, limit)                                                                                       \
    for (int one = strcmp(word, "*") == 0 ? -1 : (int)number(word, 0, (limit)-1), index = one < 0 ? 0 : one;           \
         index < (one < 0 ? (limit) : one + 1); index++)

static void gpus(char **word) { node.boards = (int)number(word[1], 0, MAX_BOARDS); }

static void generation(char **word) {
    static const char *const names[] = {"hopper", "blackwell", "ampere", "volta"};
    node.generation = (enum generation)ROW_NAMED(word[1], names);
}

static void frozen(char **word) {
    (void)word;
    node.frozen = true;
}

static void prices(char **word) {
    (void)word;
    node.prices = true;
}

static void set(char **word) {
    size_t row = ROW_NAMED(word[2], READING_ROWS);
    EACH(board, word[1], MAX_BOARDS) node.board[board].reading[row] = given(word[3]);
}

static void link_set(char **word) {
    size_t row = ROW_NAMED(word[3], LINK_ROWS);
    EACH(board, word[1], MAX_BOARDS)
    EACH(link, word[2], MAX_LINKS) node.board[board].link[link][row] = given(word[4]);
}

static void text(char **word) {
    char value[TEXT_SIZE] = "";
    const char *from = word[3];
    for (size_t length = 0; *from != '\0'; length++) {
        unsigned int byte;
        bool escaped = sscanf(from, "\\x%2x", &byte) == 1;
        if (length == sizeof value - 1)
            refuse("a text has at most %zu bytes", sizeof value - 1);
        value[length] = escaped ? (char)byte : *from;
        from += escaped ? 4 : 1;
    }
    size_t row = ROW_NAMED(word[2], TEXT_ROWS);
    EACH(board, word[1], MAX_BOARDS) memcpy(node.board[board].text[row], value, sizeof value);
}

static void vanish(char **word) {
    EACH(board, word[1], MAX_BOARDS) node.board[board].vanished = true;
}

static void renew(char **word) {
    EACH(board, word[1], MAX_BOARDS) node.board[board].renewed = true;
}

static void mig(char **word) {
    EACH(board, word[1], MAX_BOARDS) {
        struct mig_instance *instance = NEXT_OF(node.board[board].mig, &node.board[board].migs);
        instance->gpu_instance = instance_id(word[2]);
        instance->compute_instance = instance_id(word[3]);
        copy_word(instance->profile, sizeof instance->profile, word[4]);
        instance->memory_mib = (unsigned long long)number(word[5], 0, LLONG_MAX);
    }
}

static void contexts(char **word) { copy_word(node.contexts, sizeof node.contexts, word[1]); }

static void process_of(enum process_kind kind, char **word) {
    struct given memory = given(word[3]);
    EACH(board, word[1], MAX_BOARDS) {
        nvmlProcessInfo_t *process = NEXT_OF(node.board[board].process, &node.board[board].processes);
        node.board[board].kind[node.board[board].processes - 1] = kind;
        process->pid = (unsigned int)number(word[2], 0, UINT_MAX);
        process->usedGpuMemory = (unsigned long long)(memory.value == NO ? NVML_VALUE_NOT_AVAILABLE : memory.value);
        process->gpuInstanceId = instance_id(word[4]);
        process->computeInstanceId = instance_id(word[5]);
    }
}

static void process(char **word) { process_of(COMPUTE, word); }
static void graphics(char **word) { process_of(GRAPHICS, word); }
static void mps(char **word) { process_of(MPS, word); }

static void xid(char **word) {
    struct xid *xid = NEXT_OF(node.xid, &node.xids);
    xid->sequence = number(word[1], 1, LLONG_MAX);
    xid->board = (int)number(word[2], 0, MAX_BOARDS - 1);
    xid->data.eventType = nvmlEventTypeXidCriticalError;
    xid->data.eventData = (unsigned long long)number(word[3], 0, UINT_MAX);
    xid->data.gpuInstanceId = instance_id(word[4]);
    xid->data.computeInstanceId = instance_id(word[5]);
}

static bool is_call(const char *word) {
    void *self = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
    bool exported = self != NULL && dlsym(self, word) != NULL;
    if (self != NULL)
        dlclose(self);
    return exported || strcmp(word, "*") == 0 || strncmp(word, "field:", 6) == 0;
}

static void rule(enum action action, char **word, const char *argument, const char *once) {
    struct rule *rule = NEXT_OF(node.rule, &node.rules);
    rule->action = action;
    rule->board = board_number(word[1]);
    copy_word(rule->call, sizeof rule->call, word[2]);
    if (!is_call(rule->call))
        refuse("'%s' is no entry point of this library", rule->call);
    rule->argument = argument == NULL ? 0 : number(argument, 0, LLONG_MAX);
    if (once != NULL && strncmp(once, "once=", 5) != 0)
        refuse("'%s' is not once=PATH", once);
    copy_word(rule->once, sizeof rule->once, once == NULL ? "" : once + 5);
}

static void error(char **word) { rule(ERROR, word, word[3], word[4]); }
static void slow(char **word) { rule(SLOW, word, word[3], word[4]); }
static void hang(char **word) { rule(HANG, word, NULL, word[3]); }
static void hang_hard(char **word) { rule(HANG_HARD, word, NULL, word[3]); }
static void crash(char **word) { rule(CRASH, word, NULL, word[3]); }

enum { MAX_WORDS = 6 };
static const struct {
    const char *name;
    void (*apply)(char **word); /* words that are not given are NULL */
    int least, most;            /* words, the name included; the last of `most` takes the rest of the line */
} DIRECTIVES[] = {
    {"gpus", gpus, 2, 2},     {"generation", generation, 2, 2},     {"frozen", frozen, 1, 1}, {"prices", prices, 1, 1},
    {"set", set, 4, 4},       {"link", link_set, 5, 5},             {"text", text, 4, 4},     {"vanish", vanish, 2, 2},
    {"mig", mig, 6, 6},       {"process", process, 4, 6},           {"xid", xid, 4, 6},       {"error", error, 4, 5},
    {"slow", slow, 4, 5},     {"hang", hang, 3, 4},                 {"hang_hard", hang_hard, 3, 4},
    {"crash", crash, 3, 4},   {"renew", renew, 2, 2},               {"graphics", graphics, 4, 6},
    {"mps", mps, 4, 6},       {"contexts", contexts, 2, 2},
};

static int split(char *line, int most, char **word) {
    int words = 0;
    while (words < most && *(line += strspn(line, " \t")) != '\0') {
        word[words++] = line;
        if (words < most && *(line += strcspn(line, " \t")) != '\0')
            *line++ = '\0';
    }
    return words;
}

static void apply_line(char *line) {
    char *name[2], *word[MAX_WORDS] = {NULL};
    for (char *end = line + strlen(line); end > line && isspace((unsigned char)end[-1]);)
        *--end = '\0';
    int words = split(line, 2, name);
    if (words == 0 || *name[0] == '#')
        return;
    size_t row = ROW_NAMED(name[0], DIRECTIVES);
    word[0] = name[0];
    if (words == 2)
        words = 1 + split(name[1], DIRECTIVES[row].most - 1, word + 1);
    if (words < DIRECTIVES[row].least)
        refuse("'%s' takes at least %d words more", name[0], DIRECTIVES[row].least - 1);
    DIRECTIVES[row].apply(word);
}

void read_control_file(const char *path) {
    char line[512];
    memset(&node, 0, sizeof node);
    node.boards = 8;
    reading_from = path;
    line_number = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        line_number++;
        apply_line(line);
    }
    fclose(file);
}
