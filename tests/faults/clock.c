/* A clock that is one day ahead from the moment on in which the file $CLOCK_IS_AHEAD is there.

   The system's own clock stays as it is. So a wait until a time of this clock has to end when that
   time has come here, and not a day later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const time_t DAY = 24 * 60 * 60;

static long (*system_call(void))(long, ...) {
  static long (*found)(long, ...);
  if (found == NULL) found = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return found;
}

static time_t ahead(void) {
  const char* file = getenv("CLOCK_IS_AHEAD");
  return file != NULL && access(file, F_OK) == 0 ? DAY : 0;
}

/* When a wait ends by the system's clock: nobody waits for half a day here. */
static const struct timespec* at_home(const struct timespec* end, struct timespec* changed) {
  struct timespec now;
  if (end == NULL || system_call()(SYS_clock_gettime, CLOCK_REALTIME, &now)) return end;
  if (end->tv_sec < now.tv_sec + DAY / 2 || end->tv_sec > now.tv_sec + 2 * DAY) return end;
  *changed = *end;
  changed->tv_sec -= DAY;
  return changed;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  int failed = (int)system_call()(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
  return failed;
}

int gettimeofday(struct timeval* now, void* zone) {
  int failed = (int)system_call()(SYS_gettimeofday, now, zone);
  if (!failed) now->tv_sec += ahead();
  return failed;
}

time_t time(time_t* to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to != NULL) *to = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex, const struct timespec* end) {
  static int (*wait)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
  struct timespec changed;
  if (wait == NULL) wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  return wait(cond, mutex, at_home(end, &changed));
}

/* The locks of gRPC and TensorFlow call the system like this. */
long syscall(long number, ...) {
  struct timespec changed;
  long a[6];
  va_list given;
  va_start(given, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(given, long);
  va_end(given);
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME)) {
    a[3] = (long)at_home((const struct timespec*)a[3], &changed);
  }
  return system_call()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
