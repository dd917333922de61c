/* Makes writes to one file system slow, for processes that this is preloaded into.
 *
 * SLOW_DISK names a file on it, which is read at each write: it contains the delay of a
 * write or a sync in milliseconds. Without the file there is no delay. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static ssize_t (*next_write)(int, const void *, size_t);
static int (*next_fsync)(int);
static int (*next_fdatasync)(int);

__attribute__((constructor)) static void find(void) {
    next_write = dlsym(RTLD_NEXT, "write");
    next_fsync = dlsym(RTLD_NEXT, "fsync");
    next_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
}

static void be_slow(int file) {
    const char *name = getenv("SLOW_DISK");
    struct stat slow, other;
    int kept = errno;
    if (name && !fstat(file, &other) && S_ISREG(other.st_mode) && !stat(name, &slow)
        && slow.st_dev == other.st_dev) {
        char text[16] = {0};
        int setting = open(name, O_RDONLY | O_CLOEXEC);
        if (setting >= 0) {
            if (read(setting, text, sizeof text - 1) > 0) {
                long ms = strtol(text, NULL, 10);
                struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
                nanosleep(&wait, NULL);
            }
            close(setting);
        }
    }
    errno = kept;
}

ssize_t write(int file, const void *bytes, size_t length) {
    be_slow(file);
    return next_write(file, bytes, length);
}

int fsync(int file) {
    be_slow(file);
    return next_fsync(file);
}

int fdatasync(int file) {
    be_slow(file);
    return next_fdatasync(file);
}
