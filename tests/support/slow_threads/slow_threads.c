/* Loaded before all others: each thread but the first sleeps up to 0.1 s after each lock it gave back, as on a busy host. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static __thread unsigned int seed;

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    static int (*unlock)(pthread_mutex_t *);
    if (unlock == NULL)
        *(void **)&unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    int result = unlock(mutex);
    if (gettid() != getpid()) {
        if (seed == 0)
            seed = (unsigned int)gettid();
        usleep((useconds_t)(rand_r(&seed) % 100000));
    }
    return result;
}
