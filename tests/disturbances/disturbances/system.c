/* Preloaded into a process: the n-th time that it makes, writes, flushes or renames a file below a folder fails.
 * Its clock can be set, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NO_SPACE = 1, IO_ERROR = 2, SHORT_WRITE = 3 };

static char folder[PATH_MAX];
static int mode;
static long left, passed, failed;
static int cut = -1; /* a descriptor of which half a write is on disk */

/* From now on, the n-th operation below `path` fails; 0 stands for none. */
void faults_arm(const char *path, long n, int how) {
    snprintf(folder, sizeof folder, "%s", path);
    left = n, mode = how, passed = 0, failed = 0, cut = -1;
}
long faults_failed(void) { return failed; }
void faults_disarm(void) { folder[0] = 0; }

static int below(const char *path) {
    size_t length = strlen(folder);
    return length && !strncmp(path, folder, length) && path[length] == '/';
}

static int open_below(int descriptor) {
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

/* Whether this operation fails; if so, errno is set. */
static int fails(void) {
    passed++;
    if (!left || passed < left || (mode != NO_SPACE && passed > left)) return 0;
    failed++;
    errno = mode == IO_ERROR ? EIO : ENOSPC;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static ssize_t written(int descriptor, const void *bytes, size_t count, off_t place, int placed) {
    if (open_below(descriptor)) {
        if (descriptor == cut) { cut = -1; failed++; errno = ENOSPC; return -1; }
        if (fails()) {
            if (mode != SHORT_WRITE || count < 2) return -1;
            cut = descriptor, count /= 2;
        }
    }
    return placed ? REAL(pwrite)(descriptor, bytes, count, place) : REAL(write)(descriptor, bytes, count);
}
ssize_t write(int descriptor, const void *bytes, size_t count) { return written(descriptor, bytes, count, 0, 0); }
ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t place) { return written(descriptor, bytes, count, place, 1); }
ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off_t place) { return written(descriptor, bytes, count, place, 1); }
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return open_below(descriptor) && fails() ? -1 : REAL(writev)(descriptor, parts, count);
}
int fsync(int descriptor) { return open_below(descriptor) && fails() ? -1 : REAL(fsync)(descriptor); }
int fdatasync(int descriptor) { return open_below(descriptor) && fails() ? -1 : REAL(fdatasync)(descriptor); }
int rename(const char *from, const char *to) { return below(to) && fails() ? -1 : REAL(rename)(from, to); }
int mkdir(const char *path, mode_t how) { return below(path) && fails() ? -1 : REAL(mkdir)(path, how); }

static int opened(const char *name, int at, const char *path, int flags, va_list more) {
    mode_t how = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    if (flags & O_CREAT && below(path) && access(path, F_OK) && fails()) return -1;
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, name);
    return real(at, path, flags, how);
}
#define OPENS(name, real)                                  \
    int name(const char *path, int flags, ...) {           \
        va_list more;                                      \
        va_start(more, flags);                             \
        int found = opened(real, AT_FDCWD, path, flags, more); \
        va_end(more);                                      \
        return found;                                      \
    }
#define OPENS_AT(name)                                     \
    int name(int at, const char *path, int flags, ...) {   \
        va_list more;                                      \
        va_start(more, flags);                             \
        int found = opened(#name, at, path, flags, more);  \
        va_end(more);                                      \
        return found;                                      \
    }
OPENS(open, "openat")
OPENS(open64, "openat64")
OPENS_AT(openat)
OPENS_AT(openat64)

/* The clock: seconds to add, from the file `clock` in Flower's folder, read anew at most every tenth of a second. */
static double offset(const struct timespec *now) {
    static double known;
    static long read_at = -1;
    const char *home = getenv("FLWR_HOME");
    char path[PATH_MAX];
    long tenth = now->tv_sec * 10 + now->tv_nsec / 100000000;
    if (!home || tenth == read_at) return home ? known : 0;
    read_at = tenth;
    snprintf(path, sizeof path, "%s/clock", home);
    int descriptor = ((int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat"))(AT_FDCWD, path, O_RDONLY);
    char text[64] = "";
    if (descriptor >= 0) {
        if (read(descriptor, text, sizeof text - 1) > 0) known = atof(text);
        close(descriptor);
    }
    return known;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = REAL(clock_gettime)(clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += (time_t)offset(now);
    return status;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec, now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *into) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (into) *into = found.tv_sec;
    return found.tv_sec;
}
