/*
 * Shifts the wall clock of a process that preloads this library, by the seconds in the file that
 * WEIR_CLOCK names: a binary int64, which may change while the process runs. The monotonic clock
 * stays.
 *
 * libfaketime does the same for most programs, but not for redis-server: its allocator reads the
 * clock before libfaketime can find the function that it replaces.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void find_shift(void) {
	const char *name = getenv("WEIR_CLOCK");
	int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void *page;

	if (file < 0)
		return;
	page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
	if (page != MAP_FAILED)
		shift = page;
	close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
	int failed = syscall(SYS_clock_gettime, clock, at);

	if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		at->tv_sec += *shift;
	return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
	struct timespec now;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now))
		return -1;
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at) {
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now))
		return -1;
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
