/*
 * Calls functions of the C library, with and without descriptors of /dev/netmap. Each case runs in a separate process.
 *
 *     calls CASE [PORT ...]
 *
 * It prints "fine" at the end and exits with 0, or prints the failed check and exits with 1. SIGALRM ends a case that
 * hangs. PORT is a name without suffixes, except that "/x" opens the port exclusively.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/netmap.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds; longer than any case takes. */
enum { DEADLINE = 60 };

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, strerror(errno));                       \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

struct port {
	int fd;
	char *memory;
	size_t len;
	struct netmap_if *nifp;
	uint16_t mem_id;
};

/* Registers by NIOCCTRL; returns 0 or -1. */
static int bind_port(int fd, const char *name, struct nmreq_register *reg, void *options)
{
	struct nmreq_header header = {.nr_version = NETMAP_API, .nr_reqtype = NETMAP_REQ_REGISTER};
	size_t len = strcspn(name, "/");
	memcpy(header.nr_name, name, len);
	reg->nr_mode = NR_REG_ALL_NIC;
	if (name[len])
		reg->nr_flags = NR_EXCLUSIVE;
	header.nr_body = (uintptr_t)reg;
	header.nr_options = (uintptr_t)options;
	return ioctl(fd, NIOCCTRL, &header);
}

static struct port open_port(const char *name)
{
	struct nmreq_register reg = {0};
	struct port port = {.fd = open("/dev/netmap", O_RDWR)};
	CHECK(port.fd >= 0);
	CHECK(bind_port(port.fd, name, &reg, NULL) == 0);
	port.len = reg.nr_memsize;
	port.mem_id = reg.nr_mem_id;
	port.memory = mmap(NULL, port.len, PROT_READ | PROT_WRITE, MAP_SHARED, port.fd, 0);
	CHECK(port.memory != MAP_FAILED);
	port.nifp = NETMAP_IF(port.memory, reg.nr_offset);
	return port;
}

static void send_one(struct port *port)
{
	struct netmap_ring *ring = NETMAP_TXRING(port->nifp, 0);
	struct netmap_slot *slot = &ring->slot[ring->head];
	char *frame = NETMAP_BUF(ring, slot->buf_idx);
	memset(frame, 0, 60);
	memset(frame, 0xff, 6);
	frame[6] = 2;
	slot->len = 60;
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
	CHECK(ioctl(port->fd, NIOCTXSYNC, NULL) == 0);
}

/* Returns whether the descriptor is bound to a working port. */
static int is_bound(int fd)
{
	return ioctl(fd, NIOCTXSYNC, NULL) == 0;
}

/* Waits until a thread of this process sleeps in a call that waits for descriptors, or for a file lock. */
static void wait_until_asleep(pid_t thread)
{
	static const long sleeping[] = {
		SYS_ppoll, SYS_pselect6, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_openat, SYS_fcntl,
#ifdef SYS_poll
		SYS_poll, SYS_select, SYS_epoll_wait, SYS_open,
#endif
	};
	for (;;) {
		char path[64], state[64] = "", call[64] = "";
		snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
		FILE *file = fopen(path, "r");
		if (file && fgets(call, sizeof call, file) && *call != 'r')
			for (size_t n = 0; n < sizeof sleeping / sizeof *sleeping; n++)
				if (strtol(call, NULL, 10) == sleeping[n])
					strcpy(state, "asleep");
		if (file)
			fclose(file);
		if (*state)
			return;
		sched_yield();
	}
}

/* Joins a thread before the deadline. */
static void *joined(pthread_t thread)
{
	void *result;
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += DEADLINE / 2;
	if ((errno = pthread_timedjoin_np(thread, &result, &end))) {
		fprintf(stderr, "a thread did not end\n");
		_exit(1);
	}
	return result;
}

/* A thread that waits in `wait`. */
struct sleeper {
	pthread_t thread;
	int fd, result;
	_Atomic pid_t id;
	int (*wait)(int fd);
};

static void *sleeps(void *argument)
{
	struct sleeper *sleeper = argument;
	sleeper->id = gettid();
	sleeper->result = sleeper->wait(sleeper->fd);
	return NULL;
}

static void start(struct sleeper *sleeper, int fd, int (*wait)(int))
{
	sleeper->fd = fd;
	sleeper->wait = wait;
	sleeper->id = 0;
	CHECK(pthread_create(&sleeper->thread, NULL, sleeps, sleeper) == 0);
	while (!sleeper->id)
		sched_yield();
	wait_until_asleep(sleeper->id);
}

static int poll_for_ever(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};
	return poll(&event, 1, -1);
}

/* One thread waits and another one times out; the first must still be woken. */
static void wakeup(char **ports)
{
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	struct sleeper sleeper;
	start(&sleeper, to.fd, poll_for_ever);
	struct pollfd event = {.fd = to.fd, .events = POLLIN};
	CHECK(poll(&event, 1, 1) == 0);
	send_one(&from);
	joined(sleeper.thread);
	CHECK(sleeper.result == 1);
}

/* All waiting threads are woken: packets stay in the ring until all have seen them. */
static void wakeups(char **ports)
{
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	for (int round = 0; round < 100; round++) {
		struct sleeper sleepers[4];
		for (int n = 0; n < 4; n++)
			start(&sleepers[n], to.fd, poll_for_ever);
		send_one(&from);
		for (int n = 0; n < 4; n++) {
			joined(sleepers[n].thread);
			CHECK(sleepers[n].result == 1);
		}
		struct netmap_ring *ring = NETMAP_RXRING(to.nifp, 0);
		CHECK(ioctl(to.fd, NIOCRXSYNC, NULL) == 0 && !nm_ring_empty(ring));
		ring->head = ring->cur = ring->tail;
		CHECK(ioctl(to.fd, NIOCRXSYNC, NULL) == 0 && nm_ring_empty(ring));
	}
}

/* Waits by epoll_wait(2) once per line of input. */
static void epoll_by_line(char **ports)
{
	struct port port = open_port(ports[0]);
	int epoll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLOUT};
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, port.fd, &event) == 0);
	printf("ready\n");
	fflush(stdout);
	char line[8];
	while (fgets(line, sizeof line, stdin)) {
		CHECK(epoll_wait(epoll, &event, 1, -1) == 1);
		printf("waited\n");
		fflush(stdout);
	}
}

static int volatile stopped;

/* Repeatedly duplicates a descriptor. */
static void *duplicates(void *fd)
{
	while (!stopped)
		close(dup(*(int *)fd));
	return NULL;
}

static void forks(char **ports)
{
	struct port port = open_port(ports[0]);
	pthread_t threads[2];
	for (int n = 0; n < 2; n++)
		CHECK(pthread_create(&threads[n], NULL, duplicates, &port.fd) == 0);
	for (int round = 0; round < 500; round++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			alarm(DEADLINE / 2);
			dup2(2, 100);
			dup2(port.fd, 101);
			close(101);
			close(port.fd);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		if (!WIFEXITED(status)) {
			fprintf(stderr, "a child hangs in round %d\n", round);
			_exit(1);
		}
	}
	stopped = 1;
	for (int n = 0; n < 2; n++)
		joined(threads[n]);
	CHECK(is_bound(port.fd));
}

/* Repeatedly adds a descriptor to an epoll(7) and removes it. */
static void *watches(void *fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = epoll_create1(0);
	CHECK(epoll >= 0);
	while (!stopped) {
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, *(int *)fd, &event) == 0);
		CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
		CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, *(int *)fd, NULL) == 0);
	}
	return NULL;
}

/* A child can wait for a descriptor by epoll(7), whatever its parent's threads did with theirs during the fork. */
static void forks_epoll(char **ports)
{
	struct port port = open_port(ports[0]);
	pthread_t threads[2];
	for (int n = 0; n < 2; n++)
		CHECK(pthread_create(&threads[n], NULL, watches, &port.fd) == 0);
	for (int round = 0; round < 500; round++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			alarm(DEADLINE / 2);
			struct epoll_event event = {.events = EPOLLIN};
			int epoll = epoll_create1(0);
			CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, port.fd, &event) == 0);
			CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		if (status) {
			fprintf(stderr, "a child hangs or fails in round %d\n", round);
			_exit(1);
		}
	}
	stopped = 1;
	for (int n = 0; n < 2; n++)
		joined(threads[n]);
}

/* Repeatedly opens, duplicates, waits for and closes a port. */
static void *churns(void *argument)
{
	const char *name = argument;
	int epoll = epoll_create1(0);
	CHECK(epoll >= 0);
	for (int round = 0; round < 100; round++) {
		struct nmreq_register reg = {0};
		int fd = open("/dev/netmap", O_RDWR);
		CHECK(fd >= 0);
		/* The other thread may be in a call with the previous descriptor, which then is closed at the call's end. */
		while (bind_port(fd, name, &reg, NULL) < 0)
			CHECK(errno == EBUSY);
		int copy = round % 2 ? dup(fd) : fcntl(fd, F_DUPFD, 100 + round);
		struct pollfd events[2] = {{.fd = copy, .events = POLLOUT}, {.fd = fd, .events = POLLIN}};
		struct epoll_event event = {.events = EPOLLOUT};
		CHECK(copy >= 0 && poll(events, 2, 0) == 1 && events[0].revents == POLLOUT);
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, copy, &event) == 0 && epoll_wait(epoll, &event, 1, -1) == 1);
		CHECK(close(fd) == 0 && is_bound(copy) && close(copy) == 0);
		CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
	}
	CHECK(close(epoll) == 0);
	return NULL;
}

/* Uses descriptors that may belong to any thread. */
static void *guesses(void *argument)
{
	(void)argument;
	while (!stopped)
		for (int fd = 3; fd < 256; fd++) {
			struct pollfd event = {.fd = fd, .events = POLLOUT};
			poll(&event, 1, 0);
			ioctl(fd, NIOCRXSYNC, NULL);
		}
	return NULL;
}

static void churn(char **ports)
{
	pthread_t threads[5];
	for (int n = 0; n < 5; n++)
		CHECK(pthread_create(&threads[n], NULL, n ? churns : guesses, ports[n ? n - 1 : 0]) == 0);
	for (int n = 1; n < 5; n++)
		joined(threads[n]);
	stopped = 1;
	joined(threads[0]);
	for (int n = 0; n < 4; n++) {
		char alone[64];
		snprintf(alone, sizeof alone, "%s/x", ports[n]);
		open_port(alone);
	}
}

extern char **environ;

/* A descriptor that a child with borrowed memory (vfork(2)) closes stays open in the parent. */
static void borrow(int fd)
{
	pid_t child = vfork();
	if (child == 0) {
		close(fd);
		dup2(2, fd);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, NULL, 0) == child);
	CHECK(is_bound(fd));
	posix_spawn_file_actions_t actions;
	char *words[] = {"true", NULL};
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_addclose(&actions, fd) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, 2, fd) == 0);
	CHECK(posix_spawnp(&child, "true", &actions, NULL, words, environ) == 0);
	CHECK(waitpid(child, NULL, 0) == child);
	CHECK(is_bound(fd));
}

static void vforks(char **ports)
{
	struct port port = open_port(ports[0]);
	borrow(port.fd);
	/* A child with its own memory can use the port until it closes it, and can have vfork(2) children too. */
	pid_t child = fork();
	if (child == 0) {
		borrow(port.fd);
		close(port.fd);
		CHECK(!is_bound(port.fd));
		_exit(0);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(is_bound(port.fd));
}

/* A child's registration that equals its parent's shares the port; the child's other ports have separate memory. */
static void child_opens(char **ports)
{
	struct port port = open_port(ports[0]);
	int ends[2];
	uint32_t buffer = 0;
	CHECK(pipe(ends) == 0);
	pid_t child = fork();
	if (child == 0) {
		struct nmreq_register reg = {0};
		int fd = open("/dev/netmap", O_RDWR);
		CHECK(fd >= 0 && bind_port(fd, ports[0], &reg, NULL) == 0 && reg.nr_mem_id == port.mem_id);
		struct port own = open_port(ports[1]);
		/* Programs that exchange buffers take equal numbers for the same memory. */
		CHECK(own.mem_id != port.mem_id);
		struct netmap_ring *ring = NETMAP_TXRING(own.nifp, 0);
		buffer = ring->slot[0].buf_idx;
		memset(NETMAP_BUF(ring, buffer), 0xab, 60);
		CHECK(write(ends[1], &buffer, sizeof buffer) == sizeof buffer);
		send_one(&own);
		_exit(0);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(read(ends[0], &buffer, sizeof buffer) == sizeof buffer);
	unsigned char *same = (unsigned char *)NETMAP_BUF(NETMAP_TXRING(port.nifp, 0), buffer);
	if (*same == 0xab) {
		fprintf(stderr, "the child has written into its parent's memory\n");
		exit(1);
	}
	CHECK(is_bound(port.fd));
}

static void by_fclose(int fd)
{
	FILE *file = fdopen(fd, "r+");
	CHECK(file && fclose(file) == 0);
}

static void by_close_range(int fd)
{
	CHECK(close_range(fd, fd, 0) == 0);
}

static void by_closefrom(int fd)
{
	closefrom(fd);
}

static void by_syscall(int fd)
{
	CHECK(syscall(SYS_close, fd) == 0);
}

static void by_dup2(int fd)
{
	CHECK(dup2(2, fd) == fd && close(fd) == 0);
}

/* However a descriptor is closed, another file can get its number, and the port is free. */
static void closes(char **ports)
{
	static const struct {
		const char *name;
		void (*close)(int);
	} ways[] = {{"fclose", by_fclose},
		    {"close_range", by_close_range},
		    {"closefrom", by_closefrom},
		    {"syscall", by_syscall},
		    {"dup2", by_dup2}};
	char path[] = "/tmp/linerate-calls-XXXXXX";
	int file = mkstemp(path);
	CHECK(file >= 0 && unlink(path) == 0 && write(file, "a plain file", 12) == 12);
	for (unsigned n = 0; n < sizeof ways / sizeof *ways; n++) {
		/* Use a number above the library's descriptors, which closefrom would also close. */
		int fd = open("/dev/netmap", O_RDWR), high = 200;
		struct nmreq_register reg = {0};
		CHECK(fd >= 0 && bind_port(fd, ports[0], &reg, NULL) == 0);
		CHECK(dup2(fd, high) == high && close(fd) == 0 && is_bound(high));
		ways[n].close(high);
		CHECK(syscall(SYS_dup3, file, high, 0) == high);
		char *bytes = mmap(NULL, 4096, PROT_READ, MAP_SHARED, high, 0);
		if (bytes == MAP_FAILED || memcmp(bytes, "a plain file", 12)) {
			fprintf(stderr, "%s: the file's memory is not the file's\n", ways[n].name);
			exit(1);
		}
		munmap(bytes, 4096);
		CHECK(!is_bound(high));
		CHECK(syscall(SYS_close, high) == 0);
		/* The port's memory is freed with it, so request any. */
		reg.nr_mem_id = 0;
		if ((fd = open("/dev/netmap", O_RDWR)) < 0 || bind_port(fd, ports[0], &reg, NULL) < 0) {
			fprintf(stderr, "%s: the port is not free\n", ways[n].name);
			exit(1);
		}
		CHECK(close(fd) == 0);
	}
}

/* A program may close all descriptors except the port's, or all of them; it does not know the library's descriptors. */
static void closes_all(char **ports)
{
	/* Close inherited descriptors. */
	closefrom(3);
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	for (int fd = 3; fd < 256; fd++)
		if (fd != to.fd && fd != from.fd)
			CHECK(close(fd) == -1 && errno == EBADF);
	int first = to.fd < from.fd ? to.fd : from.fd, second = to.fd < from.fd ? from.fd : to.fd;
	CHECK((first + 1 == second || close_range(first + 1, second - 1, 0) == 0) && close_range(second + 1, ~0U, 0) == 0);
	send_one(&from);
	CHECK(poll_for_ever(to.fd) == 1);
	/* Close all: the ports are free, and others can be opened. */
	closefrom(3);
	CHECK(!is_bound(to.fd) && errno == EBADF);
	char alone[64];
	snprintf(alone, sizeof alone, "%s/x", ports[0]);
	open_port(alone);
	/* A child with its own memory closes its own descriptors. */
	pid_t child = fork();
	if (child == 0) {
		closefrom(3);
		for (int fd = 3; fd < 256; fd++)
			CHECK(fcntl(fd, F_GETFD) == -1);
		/* The library must have forgotten them. */
		int files[64];
		for (int n = 0; n < 64; n++)
			CHECK((files[n] = open("/dev/null", O_RDONLY)) >= 0);
		open_port(ports[1]);
		for (int n = 0; n < 64; n++)
			CHECK(close(files[n]) == 0);
		_exit(0);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* Cancellation points that wait for a descriptor which never becomes ready. */
static int ppoll_for_ever(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};
	return ppoll(&event, 1, NULL, NULL);
}

static int select_for_ever(int fd)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	return select(fd + 1, &set, NULL, NULL, NULL);
}

static int pselect_for_ever(int fd)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	return pselect(fd + 1, &set, NULL, NULL, NULL, NULL);
}

static int epoll_wait_for_ever(int fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = epoll_create1(0);
	CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	return epoll_wait(epoll, &event, 1, -1);
}

static int epoll_pwait_for_ever(int fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = epoll_create1(0);
	CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	return epoll_pwait(epoll, &event, 1, -1, NULL);
}

static char fifo[] = "/tmp/linerate-fifo-XXXXXX";

static int open_for_ever(int fd)
{
	(void)fd;
	return open(fifo, O_RDONLY);
}

static int lock_for_ever(int fd)
{
	(void)fd;
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int file = open(fifo, O_RDWR);
	return fcntl(file, F_OFD_SETLKW, &lock);
}

static void cancel_one(int fd, const char *name, int (*wait)(int))
{
	struct sleeper sleeper;
	start(&sleeper, fd, wait);
	CHECK(pthread_cancel(sleeper.thread) == 0);
	alarm(DEADLINE);
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += DEADLINE / 3;
	void *result;
	if (pthread_timedjoin_np(sleeper.thread, &result, &end) || result != PTHREAD_CANCELED) {
		fprintf(stderr, "%s is not cancelled\n", name);
		_exit(1);
	}
}

#define CANCEL(fd, wait) cancel_one(fd, #wait, wait)

static void cancel_all(int fd)
{
	CANCEL(fd, poll_for_ever);
	CANCEL(fd, ppoll_for_ever);
	CANCEL(fd, select_for_ever);
	CANCEL(fd, pselect_for_ever);
	CANCEL(fd, epoll_wait_for_ever);
	CANCEL(fd, epoll_pwait_for_ever);
}

static void *closes_cancelled(void *fd)
{
	pthread_cancel(pthread_self());
	close(*(int *)fd);
	return NULL;
}

/* Cancels threads in a program without netmap descriptors. */
static void cancel(char **ports)
{
	(void)ports;
	int ends[2];
	CHECK(pipe(ends) == 0);
	cancel_all(ends[0]);
	int file = mkstemp(fifo);
	CHECK(file >= 0);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	CHECK(fcntl(file, F_OFD_SETLK, &lock) == 0);
	CANCEL(-1, lock_for_ever);
	CHECK(close(file) == 0 && unlink(fifo) == 0 && mkfifo(fifo, 0600) == 0);
	CANCEL(-1, open_for_ever);
	CHECK(unlink(fifo) == 0);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, closes_cancelled, &ends[0]) == 0);
	CHECK(joined(thread) == PTHREAD_CANCELED);
}

/* Cancels threads that wait for a port or another file. The port must keep working, and be free after it is closed. */
static void cancel_ports(char **ports)
{
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	struct sleeper sleeper;
	int ends[2];
	CHECK(pipe(ends) == 0);
	cancel_all(ends[0]);
	start(&sleeper, to.fd, poll_for_ever);
	cancel_all(to.fd);
	send_one(&from);
	joined(sleeper.thread);
	CHECK(sleeper.result == 1);
	CHECK(close(to.fd) == 0);
	char alone[64];
	snprintf(alone, sizeof alone, "%s/x", ports[0]);
	open_port(alone);
}

/* A thread that calls one function repeatedly until it is cancelled. */
struct restless {
	int fd, way;
	volatile int has_begun;
};

enum { SYNCS, POLLS, SLEEPS, SELECTS, EPOLLS, DESCRIBES, FINDS, DUPLICATES, WAYS };

static void *calls_until_cancelled(void *argument)
{
	struct restless *self = argument;
	struct pollfd event = {.fd = self->fd, .events = POLLIN};
	struct epoll_event watched = {.events = EPOLLIN};
	struct timeval none;
	struct stat found;
	fd_set set;
	int epoll = epoll_create1(0), other = dup(self->fd);
	CHECK(epoll >= 0 && other >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, self->fd, &watched) == 0);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	self->has_begun = 1;
	for (;;)
		switch (self->way) {
		case SYNCS: ioctl(self->fd, NIOCRXSYNC, NULL); break;
		case POLLS: poll(&event, 1, 0); break;
		case SLEEPS: poll(&event, 1, -1); break;
		case SELECTS:
			FD_ZERO(&set);
			FD_SET(self->fd, &set);
			none = (struct timeval){0, 0};
			select(self->fd + 1, &set, NULL, NULL, &none);
			break;
		case EPOLLS: epoll_wait(epoll, &watched, 1, 0); break;
		case DESCRIBES: fstat(self->fd, &found); break;
		case FINDS: stat("/dev/netmap", &found); break;
		case DUPLICATES: dup2(self->fd, other); break;
		}
	return NULL;
}

/* Cancels threads at any instruction of a call. The program and the port must keep working. */
static void cancel_anywhere(char **ports)
{
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	for (int way = 0; way < WAYS; way++)
		for (int n = 0; n < 20; n++) {
			struct restless restless = {.fd = to.fd, .way = way};
			pthread_t thread;
			CHECK(pthread_create(&thread, NULL, calls_until_cancelled, &restless) == 0);
			while (!restless.has_begun)
				sched_yield();
			for (int pause = n; pause > 0; pause--)
				sched_yield();
			CHECK(pthread_cancel(thread) == 0 && joined(thread) == PTHREAD_CANCELED);
		}
	send_one(&from);
	CHECK(poll_for_ever(to.fd) == 1);
}

static void timeouts(char **ports)
{
	struct port port = open_port(ports[0]);
	int epoll = epoll_create1(0);
	struct epoll_event watched = {.events = EPOLLOUT};
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, port.fd, &watched) == 0);
	for (long seconds = LONG_MAX; seconds > LONG_MAX - 3; seconds--) {
		struct timespec longest = {.tv_sec = seconds, .tv_nsec = 999999999};
		struct timeval time = {.tv_sec = seconds, .tv_usec = 999999};
		struct pollfd event = {.fd = port.fd, .events = POLLOUT};
		CHECK(ppoll(&event, 1, &longest, NULL) == 1);
		fd_set set;
		FD_ZERO(&set);
		FD_SET(port.fd, &set);
		CHECK(select(port.fd + 1, NULL, &set, NULL, &time) == 1);
		CHECK(pselect(port.fd + 1, NULL, &set, NULL, &longest, NULL) == 1);
		CHECK(epoll_pwait2(epoll, &watched, 1, &longest, NULL) == 1);
	}
	struct timespec negative = {.tv_sec = -1}, crooked = {.tv_nsec = 1000000000};
	struct pollfd event = {.fd = port.fd, .events = POLLIN};
	CHECK(ppoll(&event, 1, &negative, NULL) == -1 && errno == EINVAL);
	CHECK(ppoll(&event, 1, &crooked, NULL) == -1 && errno == EINVAL);
}

static void duplicated(char **ports)
{
	static const int commands[] = {F_DUPFD, F_DUPFD_CLOEXEC};
	for (int n = 0; n < 2; n++) {
		struct port port = open_port(ports[0]);
		int copy = fcntl(port.fd, commands[n], 50);
		CHECK(copy >= 50 && !(fcntl(copy, F_GETFD) & FD_CLOEXEC) == (n == 0));
		CHECK(close(port.fd) == 0 && is_bound(copy) && close(copy) == 0);
	}
	/* Another file replaces a descriptor that epoll(7) watches. */
	struct port port = open_port(ports[0]);
	int epoll = epoll_create1(0), ends[2];
	struct epoll_event event = {.events = EPOLLOUT};
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, port.fd, &event) == 0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, port.fd, &event) == -1 && errno == EEXIST);
	CHECK(epoll_wait(epoll, &event, 1, 0) == 1);
	CHECK(pipe(ends) == 0 && dup2(ends[0], port.fd) == port.fd);
	CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, port.fd, &event) == 0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, port.fd, NULL) == 0);
	/* Another epoll(7) replaces the watching one. */
	port = open_port(ports[0]);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, port.fd, &event) == 0);
	int other = epoll_create1(0);
	CHECK(syscall(SYS_dup3, other, epoll, 0) == epoll);
	CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
}

/* Opens a port, for which the library starts a server. */
static void serves(char **ports)
{
	struct port port = open_port(ports[0]);
	CHECK(is_bound(port.fd));
	printf("ready\n");
	fflush(stdout);
	pause();
}

/* A program that requests one event per call still gets the events of every descriptor. */
static void fair(char **names)
{
	enum { ALL = 4, TIMES = 10 };
	int epoll = epoll_create1(0), count[ALL] = {0}, pipes[2][2];
	for (unsigned n = 0; n < 2; n++) {
		struct port port = open_port(names[n]);
		struct epoll_event event = {.events = EPOLLOUT, .data.u32 = n};
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, port.fd, &event) == 0);
		CHECK(pipe(pipes[n]) == 0 && write(pipes[n][1], "x", 1) == 1);
		event = (struct epoll_event){.events = EPOLLIN, .data.u32 = 2 + n};
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[n][0], &event) == 0);
	}
	for (unsigned n = 0; n < ALL * TIMES; n++) {
		struct epoll_event event;
		CHECK(epoll_wait(epoll, &event, 1, 1000) == 1 && event.data.u32 < ALL);
		count[event.data.u32]++;
	}
	for (unsigned n = 0; n < ALL; n++)
		CHECK(count[n] > TIMES / 2);
}

/* `struct nmreq_option` followed by the fields of a registration's options. */
struct option {
	uint64_t next;
	uint32_t reqtype, status;
	uint64_t size, first, second;
	uint32_t bits, align;
	uint64_t gap;
};

/* Sends a request; returns 0 or errno(3). */
static int request(int fd, unsigned type, const char *name, void *body, uint32_t reserved, struct option *option)
{
	struct nmreq_header header = {.nr_version = NETMAP_API, .nr_reqtype = type, .nr_reserved = reserved};
	strncpy(header.nr_name, name, sizeof(header.nr_name) - 1);
	header.nr_body = (uintptr_t)body;
	header.nr_options = (uintptr_t)option;
	return ioctl(fd, NIOCCTRL, &header) < 0 ? errno : 0;
}

/* Registers; returns 0 or errno(3). */
static int bind_as(int fd, const char *name, uint32_t mode, uint64_t flags, struct option *option)
{
	struct nmreq_register reg = {.nr_mode = mode, .nr_flags = flags};
	return request(fd, NETMAP_REQ_REGISTER, name, &reg, 0, option);
}

/* Requests that netmap rejects return its errno (netmap.c, netmap_bdg.c, netmap_null.c). */
static void refusals(char **names)
{
	const char *name = names[0];
	enum { CSB = 3, OFFSETS = 5, HDR_SET = 6, DELIF = 9, POLLING_DISABLE = 11, POOLS_INFO = 12 };
	uint64_t body[16] = {0};
	struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC};
	int fd = open("/dev/netmap", O_RDWR | O_CLOEXEC), other = open("/dev/netmap", O_RDWR);
	CHECK(request(fd, NETMAP_REQ_REGISTER, name, &reg, 1, NULL) == EINVAL);
	CHECK(bind_as(fd, name, 0, 0, NULL) == EINVAL);
	CHECK(bind_as(fd, "x", 5, 0, NULL) == EINVAL);
	CHECK(bind_as(fd, "", 7, 0, NULL) == EINVAL);
	CHECK(bind_as(fd, "x{", NR_REG_ALL_NIC, 0, NULL) == EINVAL && bind_as(fd, "x}", NR_REG_ALL_NIC, 0, NULL) == EINVAL);
	CHECK(bind_as(fd, name, NR_REG_NIC_SW, 0, NULL) == EINVAL);
	CHECK(request(fd, DELIF, "lo", body, 0, NULL) == EINVAL);
	CHECK(request(fd, POOLS_INFO, "nosuch", body, 0, NULL) == ENXIO);
	CHECK(request(fd, POLLING_DISABLE, "nosuch", body, 0, NULL) == EINVAL);
	CHECK(request(fd, POLLING_DISABLE, name, body, 0, NULL) == ENXIO);
	struct option offsets = {.reqtype = OFFSETS, .size = sizeof(offsets), .first = 3000};
	CHECK(bind_as(fd, name, NR_REG_ALL_NIC, 0, &offsets) == EINVAL && offsets.status == EINVAL);

	/* A registration that fails after its port was opened leaves the descriptor unbound and the port free. */
	struct option csb = {.reqtype = CSB, .size = 40, .first = 4096, .second = 4096};
	CHECK(bind_as(fd, name, NR_REG_ALL_NIC, NR_EXCLUSIVE, &csb) == EFAULT && csb.status == EFAULT);
	csb.first += 8;
	CHECK(bind_as(fd, name, NR_REG_ALL_NIC, NR_EXCLUSIVE, &csb) == EINVAL && csb.status == EINVAL);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && !is_bound(fd) && errno == ENXIO);

	/* NR_EXCLUSIVE applies to the rings of a descriptor, not to the port. */
	CHECK(bind_as(fd, name, NR_REG_ALL_NIC, NR_EXCLUSIVE | NR_TX_RINGS_ONLY, NULL) == 0);
	CHECK(bind_as(other, name, NR_REG_ALL_NIC, 0, NULL) == EBUSY);
	CHECK(bind_as(other, name, NR_REG_ALL_NIC, NR_EXCLUSIVE | NR_RX_RINGS_ONLY, NULL) == 0);
	CHECK(request(fd, POLLING_DISABLE, name, body, 0, NULL) == EOPNOTSUPP);
	close(other);
	close(fd);

	/* A port with virtio-net headers cannot be bound without NR_ACCEPT_VNET_HDR. */
	struct port port = open_port(name);
	body[0] = 12;
	CHECK(request(port.fd, HDR_SET, name, body, 0, NULL) == 0);
	other = open("/dev/netmap", O_RDWR);
	CHECK(bind_as(other, name, NR_REG_ALL_NIC, 0, NULL) == EIO);

	/* An invalid head resets the ring; poll(2) reports it. */
	struct netmap_ring *ring = NETMAP_TXRING(port.nifp, 0);
	struct pollfd event = {.fd = port.fd, .events = POLLOUT};
	ring->head = ring->num_slots + 7;
	CHECK(ioctl(port.fd, NIOCTXSYNC, NULL) == 0 && ring->head == 0);
	ring->head = ring->num_slots + 7;
	CHECK(poll(&event, 1, 0) == 1 && event.revents == POLLERR && ring->head == 0);
}

/* Returns two pages of which the second is unmapped. */
static char *half_there(void)
{
	char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && munmap(memory + 4096, 4096) == 0);
	return memory;
}

#define FAULTS(call)                                                                                                   \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK((call) == -1 && errno == EFAULT);                                                                \
	} while (0)

static void pointers(char **ports)
{
	struct port port = open_port(ports[0]);
	int fd = port.fd, epoll = epoll_create1(0);
	char *page = half_there(), *bad = page + 4096, *half = page + 4092;
	struct pollfd *volatile none = NULL;
	FAULTS(poll(none, 1, 0));
	FAULTS(poll((void *)bad, 1, 0));
	*(int *)half = fd;
	FAULTS(poll((void *)half, 1, 0));
	struct pollfd event = {.fd = fd, .events = POLLOUT};
	FAULTS(ppoll(&event, 1, (void *)bad, NULL));
	FAULTS(select(fd + 1, (void *)bad, NULL, NULL, NULL));
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	FAULTS(select(fd + 1, NULL, &set, NULL, (void *)bad));
	FAULTS(pselect(fd + 1, NULL, &set, NULL, (void *)bad, NULL));
	FAULTS(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, (void *)bad));
	FAULTS(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, NULL));
	struct epoll_event watched = {.events = EPOLLOUT};
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &watched) == 0);
	FAULTS(epoll_wait(epoll, (void *)bad, 1, 0));
	FAULTS(epoll_pwait2(epoll, &watched, 1, (void *)bad, NULL));
	FAULTS(open(bad, O_RDONLY));
	FAULTS(ioctl(fd, NIOCCTRL, bad));
	FAULTS(ioctl(fd, NIOCCTRL, half));
	FAULTS(ioctl(fd, NIOCREGIF, bad));
	FAULTS(ioctl(fd, NIOCGINFO, bad));
	CHECK(ioctl(fd, NIOCCTRL, NULL) == -1 && errno == EINVAL && ioctl(fd, NIOCREGIF, NULL) == -1 && errno == EINVAL);
	for (int request = NETMAP_REQ_REGISTER; request < 16; request++) {
		struct nmreq_header header = {.nr_version = NETMAP_API, .nr_reqtype = request, .nr_name = "valePt:none"};
		header.nr_body = (uintptr_t)bad;
		int other = open("/dev/netmap", O_RDWR);
		errno = 0;
		CHECK(ioctl(other, NIOCCTRL, &header) == -1);
		CHECK(errno == EFAULT || errno == ENXIO || errno == EINVAL);
		CHECK(close(other) == 0);
	}
	/* An unmapped option, and one of which only the beginning is mapped. */
	for (int n = 0; n < 2; n++) {
		struct nmreq_register reg = {0};
		int other = open("/dev/netmap", O_RDWR);
		FAULTS(bind_port(other, "valePt:b", &reg, n ? half : bad));
		CHECK(close(other) == 0);
	}
	/* A path at the end of mapped memory. */
	memcpy(bad - 5, "/dev", 5);
	CHECK(open(bad - 5, O_RDONLY | O_DIRECTORY) >= 0);
	memcpy(bad - 12, "/dev/netmap", 12);
	CHECK(open(bad - 12, O_RDWR) >= 0);
}

/* Works even in a sandbox that forbids process_vm_readv(2), with which the library reads the program's memory. */
static void confined(char **ports)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	send_one(&from);
	CHECK(poll_for_ever(to.fd) == 1);
}

static void time_left(char **ports)
{
	struct port port = open_port(ports[0]);
	fd_set set;
	FD_ZERO(&set);
	FD_SET(port.fd, &set);
	struct timeval time = {.tv_sec = 1000};
	CHECK(select(port.fd + 1, NULL, &set, NULL, &time) == 1);
	CHECK(time.tv_sec < 1000 && time.tv_sec > 0);
	time = (struct timeval){.tv_usec = 1000};
	CHECK(select(port.fd + 1, &set, NULL, NULL, &time) == 0);
	CHECK(time.tv_sec == 0 && time.tv_usec == 0);
}

static void created(char **ports)
{
	int fd = creat("/dev/netmap", 0600);
	struct stat status;
	CHECK(fd >= 0 && fstat(fd, &status) == 0);
	if (S_ISREG(status.st_mode)) {
		unlink("/dev/netmap");
		fprintf(stderr, "creat made a file\n");
		exit(1);
	}
	struct nmreq_register reg = {0};
	CHECK(bind_port(fd, ports[0], &reg, NULL) == 0 && is_bound(fd));
}

/* External memory (struct nmreq_opt_extmem). */
struct external {
	uint64_t next;
	uint32_t type, status;
	uint64_t size;
	uint64_t address;
	struct {
		uint64_t memsize;
		uint16_t mem_id, pad[3];
		uint64_t if_offset;
		uint32_t if_total, if_size;
		uint64_t ring_offset;
		uint32_t ring_total, ring_size;
		uint64_t buf_offset;
		uint32_t buf_total, buf_size;
	} pools;
};

static int maps(void)
{
	int count = 0;
	char line[512];
	FILE *file = fopen("/proc/self/maps", "r");
	CHECK(file);
	while (fgets(line, sizeof line, file))
		count += strstr(line, "memfd:linerate") != NULL;
	fclose(file);
	return count;
}

static void external(char **ports)
{
	/* Only the first hundred bytes of the last page belong to the external memory. */
	size_t whole = 8 << 20, len = whole + 100;
	int count = 0;
	for (int round = 0; round < 20; round++) {
		char *memory = mmap(NULL, whole + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(memory != MAP_FAILED);
		memset(memory + whole, 0x5a, 4096);
		struct external option = {.type = 1, .size = sizeof option - 24, .address = (uintptr_t)memory};
		option.pools.memsize = len;
		option.pools.buf_size = 64;
		option.pools.buf_total = 1000000;
		struct nmreq_register reg = {.nr_tx_slots = 64, .nr_rx_slots = 64};
		int fd = open("/dev/netmap", O_RDWR);
		CHECK(bind_port(fd, ports[0], &reg, &option) == 0);
		CHECK(option.status == 0 && reg.nr_memsize <= len);
		for (size_t n = 0; n < 4096; n++)
			if (memory[whole + n] != 0x5a) {
				fprintf(stderr, "memory behind the program's was taken\n");
				exit(1);
			}
		CHECK(close(fd) == 0 && munmap(memory, whole + 4096) == 0);
		if (round == 2)
			count = maps();
	}
	if (maps() > count) {
		fprintf(stderr, "memory is never freed: %d mappings, %d before\n", maps(), count);
		exit(1);
	}
	/* Unmapped memory cannot be shared. */
	char *hole = half_there();
	struct external option = {.type = 1, .size = sizeof option - 24, .address = (uintptr_t)hole + 4096};
	option.pools.memsize = whole;
	struct nmreq_register reg = {0};
	int fd = open("/dev/netmap", O_RDWR);
	FAULTS(bind_port(fd, ports[0], &reg, &option));
	/* Neither can memory that the program cannot write. */
	int protections[] = {PROT_READ, PROT_NONE, PROT_READ | PROT_EXEC};
	for (int n = 0; n < 3; n++) {
		char *fixed = mmap(NULL, whole, protections[n], MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(fixed != MAP_FAILED);
		option.address = (uintptr_t)fixed;
		FAULTS(bind_port(fd, ports[0], &reg, &option));
	}
}

/* Uses a port by a descriptor that another process or program has opened. */
static struct port taken_up(int fd, size_t len, size_t offset)
{
	struct port port = {.fd = fd, .len = len};
	port.memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(port.memory != MAP_FAILED);
	port.nifp = NETMAP_IF(port.memory, offset);
	return port;
}

static size_t offset_of(const struct port *port)
{
	return (char *)port->nifp - port->memory;
}

/* Uses an inherited descriptor: calls inherited FD LEN OFFSET. */
static void inherited(char **arguments)
{
	struct port port = taken_up(atoi(arguments[0]), strtoul(arguments[1], NULL, 0), strtoul(arguments[2], NULL, 0));
	struct pollfd event = {.fd = port.fd, .events = POLLOUT};
	CHECK(poll(&event, 1, -1) == 1 && event.revents == POLLOUT);
	send_one(&port);
	CHECK(is_bound(port.fd));
}

static pid_t run_inherited(const struct port *port, int fd)
{
	char number[16], len[32], offset[32];
	snprintf(number, sizeof number, "%d", fd);
	snprintf(len, sizeof len, "%zu", port->len);
	snprintf(offset, sizeof offset, "%zu", offset_of(port));
	pid_t child = fork();
	if (child == 0) {
		dup2(STDERR_FILENO, STDOUT_FILENO);
		execl("/proc/self/exe", "calls", "inherited", number, len, offset, NULL);
		_exit(127);
	}
	CHECK(child > 0);
	return child;
}

static void ended_well(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void took(struct port *port)
{
	struct netmap_ring *ring = NETMAP_RXRING(port->nifp, 0);
	while (nm_ring_empty(ring))
		CHECK(poll_for_ever(port->fd) == 1);
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
	CHECK(ioctl(port->fd, NIOCRXSYNC, NULL) == 0);
}

/* A descriptor still works after execve(2), and its port lives as long as any process has it. */
static void executes(char **ports)
{
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	pid_t child = run_inherited(&from, from.fd);
	CHECK(close(from.fd) == 0);
	ended_well(child);
	took(&to);
	/* The port is closed, so it can be opened exclusively. */
	char alone[64];
	snprintf(alone, sizeof alone, "%s/x", ports[1]);
	struct port again = open_port(alone);
	/* Also with a descriptor that was duplicated without the C library. */
	int high = syscall(SYS_dup, again.fd);
	CHECK(high >= 0 && is_bound(high));
	ended_well(run_inherited(&again, high));
	took(&to);
}

static void send_descriptor(int socket, int fd)
{
	char byte = 0, space[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	struct cmsghdr *control = CMSG_FIRSTHDR(&message);
	control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS, control->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(control), &fd, sizeof fd);
	CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_descriptor(int socket)
{
	char byte, space[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	int fd;
	CHECK(recvmsg(socket, &message, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

/* A descriptor works in a process that it is passed to, both while its opener runs and after the opener was killed. */
static void passes(char **ports)
{
	struct port to = open_port(ports[0]);
	int ends[2], sizes[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && pipe(sizes) == 0);
	pid_t opener = fork();
	if (opener == 0) {
		struct port port = open_port(ports[1]);
		/* Pass an unbound descriptor too. */
		send_descriptor(ends[1], open("/dev/netmap", O_RDWR));
		send_descriptor(ends[1], port.fd);
		size_t told[2] = {port.len, offset_of(&port)};
		CHECK(write(sizes[1], told, sizeof told) == sizeof told);
		pause();
	}
	int unbound = receive_descriptor(ends[0]), fd = receive_descriptor(ends[0]);
	size_t told[2];
	CHECK(read(sizes[0], told, sizeof told) == sizeof told);
	struct port port = taken_up(fd, told[0], told[1]);
	send_one(&port);
	took(&to);
	CHECK(kill(opener, SIGKILL) == 0 && waitpid(opener, NULL, 0) == opener);
	send_one(&port);
	took(&to);
	CHECK(ioctl(unbound, NIOCTXSYNC, NULL) == -1 && errno == ENXIO);
	struct nmreq_register reg = {0};
	char alone[64];
	snprintf(alone, sizeof alone, "%s/x", ports[1]);
	CHECK(bind_port(unbound, alone, &reg, NULL) == -1 && errno == EBUSY);
	CHECK(close(fd) == 0 && bind_port(unbound, alone, &reg, NULL) == 0 && is_bound(unbound));
	/* Other sockets are not affected. */
	CHECK(ioctl(ends[0], NIOCTXSYNC, NULL) == -1 && errno == ENOTTY);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, ends[0], 0) == MAP_FAILED && errno == ENODEV);
}

/* Several children send on one port; each frame arrives once. */
static void shared_by_children(char **ports)
{
	enum { CHILDREN = 3, FRAMES = 3000 };
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	/* The children take turns, as netmap requires. */
	int turn[2];
	CHECK(pipe(turn) == 0 && write(turn[1], "t", 1) == 1);
	pid_t children[CHILDREN];
	for (int n = 0; n < CHILDREN; n++)
		if ((children[n] = fork()) == 0) {
			struct netmap_ring *ring = NETMAP_TXRING(from.nifp, 0);
			for (int frame = 0; frame < FRAMES; frame++) {
				char byte;
				CHECK(read(turn[0], &byte, 1) == 1);
				while (nm_ring_space(ring) == 0) {
					struct pollfd event = {.fd = from.fd, .events = POLLOUT};
					CHECK(poll(&event, 1, -1) == 1);
				}
				send_one(&from);
				CHECK(write(turn[1], &byte, 1) == 1);
			}
			_exit(0);
		}
	for (int frame = 0; frame < CHILDREN * FRAMES; frame++)
		took(&to);
	for (int n = 0; n < CHILDREN; n++)
		ended_well(children[n]);
	CHECK(ioctl(to.fd, NIOCRXSYNC, NULL) == 0 && nm_ring_empty(NETMAP_RXRING(to.nifp, 0)));
}

/* Calls that wait for an epoll(7) of a port are woken while the port has a packet, and only then. */
static void nested(char **ports)
{
	struct port to = open_port(ports[0]), from = open_port(ports[1]);
	int inner = epoll_create1(0), outer = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5}, got[3];
	CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, to.fd, &event) == 0);
	event.data.u64 = 6;
	CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0);
	for (int round = 0; round < 200; round++) {
		struct pollfd waits = {.fd = inner, .events = POLLIN};
		CHECK(epoll_wait(outer, got, 3, 0) == 0 && poll(&waits, 1, 0) == 0);
		send_one(&from);
		if (round % 2)
			CHECK(poll(&waits, 1, -1) == 1);
		/* The packet is reported until it is released. */
		for (int again = 0; again < 2; again++) {
			CHECK(epoll_wait(outer, got, 3, -1) == 1 && got[0].data.u64 == 6);
			CHECK(epoll_wait(inner, got, 3, -1) == 1 && got[0].data.u64 == 5 && got[0].events == EPOLLIN);
		}
		took(&to);
		/* The token of the last packet may still be queued. */
		while (epoll_wait(outer, got, 3, 0) == 1)
			CHECK(epoll_wait(inner, got, 3, 0) == 0);
	}
	/* Events of other descriptors are not affected. */
	int ends[2];
	CHECK(pipe(ends) == 0);
	event.data.u64 = 7;
	CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, ends[0], &event) == 0 && write(ends[1], "x", 1) == 1);
	CHECK(epoll_wait(inner, got, 3, -1) == 1 && got[0].data.u64 == 7);
	send_one(&from);
	while (epoll_wait(inner, got, 3, -1) != 2)
		;
}

/* stat(2), access(2) and their variants report netmap's device. */
static void looks(char **ports)
{
	(void)ports;
	struct stat found;
	CHECK(stat("/dev/netmap", &found) == 0 && S_ISCHR(found.st_mode));
	CHECK(lstat("/dev/netmap", &found) == 0 && S_ISCHR(found.st_mode));
	CHECK(fstatat(AT_FDCWD, "/dev/netmap", &found, 0) == 0 && S_ISCHR(found.st_mode));
	struct statx extended;
	CHECK(statx(AT_FDCWD, "/dev/netmap", 0, STATX_TYPE, &extended) == 0 && S_ISCHR(extended.stx_mode));
	CHECK(access("/dev/netmap", R_OK | W_OK) == 0 && access("/dev/netmap", X_OK) == -1 && errno == EACCES);
	CHECK(faccessat(AT_FDCWD, "/dev/netmap", F_OK, 0) == 0 && euidaccess("/dev/netmap", R_OK) == 0);
	int fd = open("/dev/netmap", O_RDWR);
	CHECK(fstat(fd, &found) == 0 && S_ISCHR(found.st_mode));
	CHECK(stat("/dev/netmap2", &found) == -1 && errno == ENOENT && stat("/dev/null", &found) == 0);
	const char *volatile none = NULL;
	CHECK(stat(none, &found) == -1 && errno == EFAULT && access((char *)1, F_OK) == -1 && errno == EFAULT);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(char **);
	} cases[] = {
		{"wakeup", wakeup},         {"wakeups", wakeups},     {"epoll", epoll_by_line}, {"forks", forks},
		{"vforks", vforks},         {"closes", closes},         {"closes-all", closes_all}, {"churn", churn},           {"confined", confined},           {"child-opens", child_opens},       {"cancel", cancel},       {"cancel-ports", cancel_ports}, {"cancel-anywhere", cancel_anywhere},
		{"forks-epoll", forks_epoll},
		{"timeouts", timeouts},     {"duplicated", duplicated}, {"serves", serves},     {"pointers", pointers},
		{"time-left", time_left},   {"created", created},     {"external", external},
		{"inherited", inherited}, {"executes", executes}, {"passes", passes}, {"nested", nested},
		{"shared-by-children", shared_by_children}, {"looks", looks},          {"refusals", refusals}, {"fair", fair},
	};
	alarm(DEADLINE);
	for (unsigned n = 0; argc > 1 && n < sizeof cases / sizeof *cases; n++)
		if (!strcmp(argv[1], cases[n].name)) {
			cases[n].run(argv + 2);
			printf("fine\n");
			return 0;
		}
	return 2;
}
