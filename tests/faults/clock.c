/* A clock that is one day ahead from the moment on in which the file $CLOCK_IS_AHEAD is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t ahead(void) {
  const char* file = getenv("CLOCK_IS_AHEAD");
  return file != NULL && access(file, F_OK) == 0 ? 24 * 60 * 60 : 0;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
  return failed;
}

int gettimeofday(struct timeval* now, void* zone) {
  int failed = (int)syscall(SYS_gettimeofday, now, zone);
  if (!failed) now->tv_sec += ahead();
  return failed;
}

time_t time(time_t* to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to != NULL) *to = now.tv_sec;
  return now.tv_sec;
}
