/* Makes fsync, fdatasync, pwrite and pread fail in a process that preloads this library, as a failing disk does.
 *
 * FAILING_DISK names a file. While it exists, each of its lines is a rule "CALL SUFFIX ERRNO COUNT SKIP": of the
 * calls (sync, write or read) on files whose name ends with SUFFIX, the first SKIP succeed and the next COUNT fail with this
 * error number. A new file starts a new count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RULES 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct timespec counted;
static int calls[RULES];

static int ends_with(const char *text, const char *end) {
  size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static int fails(const char *call, int descriptor) {
  const char *rules_path = getenv("FAILING_DISK");
  FILE *rules = rules_path ? fopen(rules_path, "re") : NULL;
  if (rules == NULL) return 0;
  char link[64], path[4096], rule_call[16], suffix[256];
  struct stat found;
  int number, count, skip, error = 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  pthread_mutex_lock(&lock);
  if (fstat(fileno(rules), &found) == 0 && memcmp(&found.st_mtim, &counted, sizeof counted) != 0) {
    counted = found.st_mtim;
    memset(calls, 0, sizeof calls);
  }
  for (int rule = 0; rule < RULES && !error; rule++) {
    if (fscanf(rules, "%15s %255s %d %d %d", rule_call, suffix, &number, &count, &skip) != 5) break;
    if (strcmp(rule_call, call) == 0 && ends_with(path, suffix)) {
      int position = calls[rule]++ - skip;
      if (position >= 0 && position < count) error = number;
    }
  }
  pthread_mutex_unlock(&lock);
  fclose(rules);
  return error;
}

#define NEXT(name, type) ((type)dlsym(RTLD_NEXT, name))

static int failing_sync(const char *name, int descriptor) {
  int error = fails("sync", descriptor);
  if (error) return errno = error, -1;
  return NEXT(name, int (*)(int))(descriptor);
}

int fsync(int descriptor) { return failing_sync("fsync", descriptor); }
int fdatasync(int descriptor) { return failing_sync("fdatasync", descriptor); }

static ssize_t failing_write(int descriptor, const void *data, size_t size, off64_t offset) {
  int error = fails("write", descriptor);
  if (error) return errno = error, -1;
  return NEXT("pwrite64", ssize_t (*)(int, const void *, size_t, off64_t))(descriptor, data, size, offset);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
  return failing_write(descriptor, data, size, offset);
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
  return failing_write(descriptor, data, size, offset);
}

static ssize_t failing_read(int descriptor, void *data, size_t size, off64_t offset) {
  int error = fails("read", descriptor);
  if (error) return errno = error, -1;
  return NEXT("pread64", ssize_t (*)(int, void *, size_t, off64_t))(descriptor, data, size, offset);
}

ssize_t pread64(int descriptor, void *data, size_t size, off64_t offset) {
  return failing_read(descriptor, data, size, offset);
}
ssize_t pread(int descriptor, void *data, size_t size, off_t offset) {
  return failing_read(descriptor, data, size, offset);
}
