/* The simulated node: what the control file says over what readings.def gives, and the faults it asks for.
 *
 * Boards are numbered as in the control file and keep their number; NVML indices count the boards that are present.
 * A handle is a pointer to a row of a static table: it stays valid for the life of the process, and the same but for `renew`.
 * Every entry point opens with one of the ENTER macros: the control file is read again if it changed, the faults asked
 * for this call happen, and the node is locked against change until the entry point returns.
 */
#ifndef NODE_H
#define NODE_H

#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { MAX_BOARDS = 16, MAX_LINKS = 18, MAX_MIG = 7, MAX_PROCESSES = 64, MAX_XIDS = 512, MAX_RULES = 64 };
enum { TEXT_SIZE = 96 };
enum { NO_BOARD = -1, ANY_BOARD = -2, WHOLE_GPU = -1 };

#define NO LLONG_MIN /* not supported: by the generation, or by the control file's `none` */

enum reading {
    READING_nothing,
#define READING(name, ...) READING_##name,
#include "readings.def"
    READINGS
};
enum link_reading {
    LINK_nothing,
#define LINK(name, ...) LINK_##name,
#include "readings.def"
    LINK_READINGS
};
enum text {
#define TEXT(name, ...) TEXT_##name,
#include "readings.def"
    TEXTS
};
enum generation { HOPPER, BLACKWELL, AMPERE, VOLTA, GENERATIONS };
enum motion { FIXED, WAVE, RATE, SUM, PER_GPU };
enum process_kind { COMPUTE, GRAPHICS, MPS };
enum action { ERROR, SLOW, HANG, HANG_HARD, CRASH };

struct reading_row {
    const char *name;
    long long by_generation[GENERATIONS];
    enum motion motion;
    long long amount;
};
struct link_row {
    const char *name;
    long long by_generation[GENERATIONS];
    long long rate;
};
struct text_row {
    const char *name;
    const char *format[GENERATIONS];
};
extern const struct reading_row READING_ROWS[READINGS];
extern const struct link_row LINK_ROWS[LINK_READINGS];
extern const struct text_row TEXT_ROWS[TEXTS];

struct given {
    bool is;
    long long value;
};
struct mig_instance {
    unsigned int gpu_instance, compute_instance;
    char profile[32];
    unsigned long long memory_mib;
};
struct board {
    bool vanished;
    bool renewed;
    struct given reading[READINGS];
    struct given link[MAX_LINKS][LINK_READINGS];
    char text[TEXTS][TEXT_SIZE]; /* empty: the generation's */
    struct mig_instance mig[MAX_MIG];
    int migs;
    nvmlProcessInfo_t process[MAX_PROCESSES];
    enum process_kind kind[MAX_PROCESSES];
    int processes;
};
struct rule {
    enum action action;
    int board;
    char call[64];       /* an entry point, `field:ID`, or `*` for every entry point */
    long long argument;  /* ERROR: the nvmlReturn; SLOW: microseconds */
    char once[256];      /* the fault strikes only the process that creates this file; empty: always */
};
struct xid {
    long long sequence;
    int board;
    nvmlEventData_t data;
};
struct node {
    int boards;
    enum generation generation;
    bool frozen;
    bool prices;
    char contexts[256]; /* folder with a file BOARD.PID for each context of the fake libcuda; empty: none */
    struct board board[MAX_BOARDS];
    struct rule rule[MAX_RULES];
    int rules;
    struct xid xid[MAX_XIDS];
    int xids;
};
extern struct node node; /* to be looked at inside a visit only */

struct nvmlDevice_st {
    int board;
    int mig; /* place among the board's instances, or WHOLE_GPU */
};

extern atomic_int users; /* nvmlInit counted up, nvmlShutdown down */

/* One entry point at work. It holds the node from enter() to leave(). */
struct visit {
    nvmlReturn_t code;
    long long price;   /* microseconds of CPU, due when it ends well */
    bool burns;        /* as the control file asks; else the price is only counted */
    long long entered; /* nanoseconds of CPU of this thread */
};
#define VISIT(call, board) struct visit visit __attribute__((cleanup(leave))) = enter(call, board)

#define ENTER_BOARD(board)                                                                                             \
    if (users == 0)                                                                                                    \
        return NVML_ERROR_UNINITIALIZED;                                                                               \
    VISIT(__func__, board);                                                                                            \
    if (visit.code != NVML_SUCCESS)                                                                                    \
    return visit.code
#define ENTER_NODE() ENTER_BOARD(NO_BOARD)
#define ENTER_GPU_OR_MIG(device)                                                                                       \
    if (!is_handle(device))                                                                                            \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                            \
    ENTER_BOARD((device)->board);                                                                                      \
    if ((device)->mig != WHOLE_GPU && mig_instance_of(device) == NULL)                                                 \
    return NVML_ERROR_INVALID_ARGUMENT
#define ENTER(device)                                                                                                  \
    ENTER_GPU_OR_MIG(device);                                                                                          \
    if ((device)->mig != WHOLE_GPU)                                                                                    \
    return not_supported()

/* Inside an entry point: answers with a value, or leaves where there is none. */
#define ANSWER(out, value)                                                                                             \
    do {                                                                                                               \
        long long answer = (value);                                                                                    \
        if (answer == NO)                                                                                              \
            return not_supported();                                                                                    \
        *(out) = (__typeof__(*(out)))answer;                                                                           \
    } while (0)
#define EXPECT_VERSION(given, wanted)                                                                                  \
    if ((given) != (wanted))                                                                                           \
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define CHOSEN(table, choice) ((size_t)(choice) < COUNT(table) ? (table)[choice] : 0) /* 0: nothing chosen */

/* control_file.c: replaces `node`; a line that is no directive ends the process with a message on stderr. */
void read_control_file(const char *path);

/* faults.c */
struct visit enter(const char *call, int board);
void leave(struct visit *visit);
void follow_control_file(const char *path); /* NULL: none, a healthy node */
const char *control_file(void);
nvmlReturn_t field_fault(int board, unsigned int field);

/* prices.c: in microseconds unless noted */
nvmlReturn_t not_supported(void);
long long price_of(const char *call, int board);
long long price_of_field(unsigned int field);
void pay(const struct visit *visit);
long long cpu_nanoseconds(void);

/* node.c; inside a visit, but for the handles. A reading that is not supported is NO. */
bool is_handle(nvmlDevice_t device);
nvmlDevice_t handle_of(int board, int mig);
bool board_present(int board);
double monotonic_seconds(void);
double node_seconds(void); /* the same, or an instant where the node is frozen */
unsigned int place_of(int board); /* in NVML's enumeration */
long long reading_of(int board, enum reading reading);
long long link_reading_of(int board, unsigned int link, enum link_reading reading);
long long link_sum_of(int board, enum link_reading reading);
void text_of(int board, enum text text, char out[TEXT_SIZE]);
const struct mig_instance *mig_instance_of(nvmlDevice_t device); /* NULL: a whole GPU, or no such instance */
bool has_gpu_instance(int board, unsigned int gpu_instance);
unsigned int processes_of(nvmlDevice_t device, enum process_kind kind, unsigned int room, nvmlProcessInfo_t *out);
long long last_xid(void);
bool next_xid(unsigned int boards, long long *seen, nvmlEventData_t *out);

#endif
