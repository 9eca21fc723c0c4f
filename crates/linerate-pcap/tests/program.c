/* A program that uses only documented calls of libpcap. It is linked with the system's libpcap.so.0.8; LD_LIBRARY_PATH or
 * LD_PRELOAD can replace the library by another of that name. Usage: program WHAT DEVICE [NUMBER...] */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct pcap pcap_t;
struct pcap_pkthdr { struct timeval ts; uint32_t caplen, len; };
struct pcap_stat { unsigned recv, drop, ifdrop; };
struct bpf_program { unsigned len; void *insns; };
struct pcap_if { struct pcap_if *next; char *name, *description; void *addresses; unsigned flags; };
const char *pcap_lib_version(void), *pcap_strerror(int), *pcap_statustostr(int);
typedef void (*pcap_handler)(unsigned char *, const struct pcap_pkthdr *, const unsigned char *);

pcap_t *pcap_create(const char *, char *);
pcap_t *pcap_open_live(const char *, int, int, int, char *);
int pcap_activate(pcap_t *), pcap_set_snaplen(pcap_t *, int), pcap_set_promisc(pcap_t *, int), pcap_set_rfmon(pcap_t *, int),
	pcap_set_timeout(pcap_t *, int), pcap_set_immediate_mode(pcap_t *, int), pcap_set_buffer_size(pcap_t *, int),
	pcap_can_set_rfmon(pcap_t *), pcap_set_tstamp_precision(pcap_t *, int), pcap_get_tstamp_precision(pcap_t *),
	pcap_set_tstamp_type(pcap_t *, int), pcap_snapshot(pcap_t *), pcap_datalink(pcap_t *), pcap_datalink_ext(pcap_t *),
	pcap_set_datalink(pcap_t *, int), pcap_list_datalinks(pcap_t *, int **), pcap_list_tstamp_types(pcap_t *, int **),
	pcap_is_swapped(pcap_t *), pcap_setnonblock(pcap_t *, int, char *), pcap_getnonblock(pcap_t *, char *),
	pcap_setdirection(pcap_t *, int), pcap_compile(pcap_t *, struct bpf_program *, const char *, int, unsigned),
	pcap_setfilter(pcap_t *, struct bpf_program *), pcap_stats(pcap_t *, struct pcap_stat *), pcap_inject(pcap_t *, const void *, size_t),
	pcap_sendpacket(pcap_t *, const unsigned char *, int), pcap_get_selectable_fd(pcap_t *), pcap_fileno(pcap_t *),
	pcap_dispatch(pcap_t *, int, pcap_handler, unsigned char *), pcap_loop(pcap_t *, int, pcap_handler, unsigned char *),
	pcap_next_ex(pcap_t *, struct pcap_pkthdr **, const unsigned char **), pcap_findalldevs(struct pcap_if **, char *),
	pcap_lookupnet(const char *, uint32_t *, uint32_t *, char *);
const unsigned char *pcap_next(pcap_t *, struct pcap_pkthdr *);
void pcap_close(pcap_t *), pcap_breakloop(pcap_t *), pcap_freecode(struct bpf_program *), pcap_freealldevs(struct pcap_if *),
	pcap_free_datalinks(int *), pcap_free_tstamp_types(int *);
char *pcap_geterr(pcap_t *);
FILE *pcap_file(pcap_t *);
void *pcap_dump_open(pcap_t *, const char *);
void pcap_dump_close(void *), pcap_dump(unsigned char *, const struct pcap_pkthdr *, const unsigned char *);
pcap_t *pcap_open_offline(const char *, char *);

static char text[256];
static pcap_t *pcap;
static long count, order_errors;
static struct timeval last;
static unsigned delay;
static unsigned char frame[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0 };

static void die(const char *what, const char *why) {
	printf("%s: %s\n", what, why);
	exit(1);
}

static pcap_t *opened(const char *device) {
	pcap_t *new = pcap_create(device, text);
	if (!new)
		die("pcap_create", text);
	pcap_set_promisc(new, 1);
	pcap_set_tstamp_precision(new, 1);
	pcap_set_immediate_mode(new, 1);
	if (pcap_activate(new) < 0)
		die("pcap_activate", pcap_geterr(new));
	return new;
}

static void ready(void) {
	printf("ready\n");
	fflush(stdout);
}

static void each(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
	(void)user, (void)bytes;
	count++;
	if (last.tv_sec > header->ts.tv_sec || (last.tv_sec == header->ts.tv_sec && last.tv_usec >= header->ts.tv_usec))
		order_errors++;
	last = header->ts;
	if (delay)
		usleep(delay);
}

static void filter(const char *expression) {
	struct bpf_program program;
	if (pcap_compile(pcap, &program, expression, 1, 0) < 0)
		die("pcap_compile", pcap_geterr(pcap));
	if (pcap_setfilter(pcap, &program) < 0)
		die("pcap_setfilter", pcap_geterr(pcap));
	pcap_freecode(&program);
}

#define SHOW(call) printf("%s: %ld\n", #call, (long)(call))

/* Also prints the error's text, which remains that of an earlier call if this one sets none. */
#define EXPLAIN(handle, call) (SHOW(call), printf("%s\n", pcap_geterr(handle)))

/* Prints what calls return for handles that are not activated; each call gets a new handle. */
static void api_before(const char *device) {
	struct bpf_program program = { 0, NULL };
	struct pcap_stat stat;
	int *list;
	pcap_t *a;
	struct pcap_pkthdr *header;
	const unsigned char *bytes;
#define NEW(call) (a = pcap_create(device, text), EXPLAIN(a, call), pcap_close(a))
	NEW(pcap_compile(a, &program, "udp", 1, 0));
	NEW(pcap_setfilter(a, &program));
	NEW(pcap_fileno(a));
	NEW(pcap_get_selectable_fd(a));
	NEW(pcap_setdirection(a, 1));
	NEW(pcap_setdirection(a, 7));
	NEW(pcap_inject(a, frame, 60));
	NEW(pcap_next_ex(a, &header, &bytes));
	NEW(pcap_loop(a, 1, each, NULL));
	NEW(pcap_stats(a, &stat));
	NEW(pcap_datalink(a));
	NEW(pcap_snapshot(a));
	NEW(pcap_set_datalink(a, 1));
	NEW(pcap_list_datalinks(a, &list));
	NEW(pcap_getnonblock(a, text));
	NEW(pcap_setnonblock(a, 1, text));
	NEW(pcap_dump_open(a, "/dev/null") != NULL);
	NEW(pcap_set_tstamp_type(a, 99));
	NEW(pcap_set_tstamp_precision(a, 7));
}

/* Prints what calls return, in all states of a handle. */
static void api(const char *device) {
	api_before(device);
	int *list = NULL;
	pcap_t *a = pcap_create(device, text);
	struct bpf_program program;
	uint32_t net, mask;
	struct pcap_stat stat;
	if (!a)
		die("pcap_create", text);
	SHOW(pcap_snapshot(a));
	SHOW(pcap_datalink(a));
	SHOW(pcap_dispatch(a, 1, each, NULL));
	printf("%s\n", pcap_geterr(a));
	SHOW(pcap_loop(a, 1, each, NULL));
	SHOW(pcap_stats(a, &stat));
	SHOW(pcap_can_set_rfmon(a));
	SHOW(pcap_set_tstamp_precision(a, 7));
	SHOW(pcap_set_tstamp_precision(a, 1));
	SHOW(pcap_get_tstamp_precision(a));
	SHOW(pcap_set_tstamp_type(a, 0));
	SHOW(pcap_set_snaplen(a, 60));
	SHOW(pcap_set_promisc(a, 1));
	SHOW(pcap_set_timeout(a, 10));
	SHOW(pcap_set_immediate_mode(a, 1));
	SHOW(pcap_set_buffer_size(a, 1 << 20));
	SHOW(pcap_activate(a));
	SHOW(pcap_activate(a));
	SHOW(pcap_set_snaplen(a, 60));
	SHOW(pcap_set_buffer_size(a, 60));
	SHOW(pcap_set_tstamp_precision(a, 0));
	printf("%s\n", pcap_geterr(a));
	SHOW(pcap_snapshot(a));
	SHOW(pcap_datalink(a));
	SHOW(pcap_datalink_ext(a));
	SHOW(pcap_is_swapped(a));
	SHOW(pcap_file(a) != NULL);
	SHOW(pcap_list_datalinks(a, &list));
	printf("%d %d\n", list[0], list[1]);
	pcap_free_datalinks(list);
	SHOW(pcap_list_tstamp_types(a, &list));
	pcap_free_tstamp_types(list);
	SHOW(pcap_set_datalink(a, 143));
	SHOW(pcap_datalink(a));
	SHOW(pcap_set_datalink(a, 1));
	SHOW(pcap_set_datalink(a, 105));
	printf("%s\n", pcap_geterr(a));
	SHOW(pcap_set_datalink(a, 9999));
	printf("%s\n", pcap_geterr(a));
	SHOW(pcap_setdirection(a, 1));
	SHOW(pcap_setdirection(a, 0));
	SHOW(pcap_setdirection(a, 7));
	printf("%s\n", pcap_geterr(a));
	for (int len = -1; len < 14; len++) {
		/* The system's libpcap appends a description of whatever errno(3) is. */
		const char *end = len > 0 ? "" : ":";
		int answer = pcap_sendpacket(a, frame, len);
		printf("%d bytes: %d %.*s\n", len, answer, (int)strcspn(pcap_geterr(a), end), pcap_geterr(a));
		answer = len < 0 ? 0 : pcap_inject(a, frame, len);
		printf("%d bytes: %d %.*s\n", len, answer, (int)strcspn(pcap_geterr(a), end), pcap_geterr(a));
	}
	for (int len = 500; len < 530; len++)
		for (int kind = 0; kind < 3; kind++) {
			/* IPv4, 802.1Q, 802.1ad */
			unsigned char longest[530] = { [12] = "\x08\x81\x88"[kind], [13] = kind == 2 ? 0xa8 : 0 };
			int answer = pcap_inject(a, longest, len);
			printf("%d bytes of kind %d: %d %s\n", len, kind, answer, answer < 0 ? pcap_geterr(a) : "");
		}
	SHOW(pcap_getnonblock(a, text));
	SHOW(pcap_setnonblock(a, 1, text));
	SHOW(pcap_getnonblock(a, text));
	SHOW(pcap_dispatch(a, -1, each, NULL));
	SHOW(pcap_compile(a, &program, "udp and port 9 and less 100", 1, 0));
	printf("%u instructions\n", program.len);
	SHOW(pcap_setfilter(a, &program));
	pcap_freecode(&program);
	EXPLAIN(a, pcap_setfilter(a, &program));
	EXPLAIN(a, pcap_setfilter(a, NULL));
	EXPLAIN(a, pcap_setfilter(a, &(struct bpf_program){ 1, frame }));
	EXPLAIN(a, pcap_compile(a, &program, "udp and prot", 1, 0));
	EXPLAIN(a, pcap_compile(a, &program, "", 1, 0));
	pcap_freecode(&program);
	SHOW(pcap_stats(a, &stat));
	printf("%u %u %u\n", stat.recv, stat.drop, stat.ifdrop);
	SHOW(pcap_get_selectable_fd(a) >= 0);
	SHOW(pcap_fileno(a) >= 0);
	SHOW(pcap_setnonblock(a, 0, text));
	pcap_breakloop(a);
	SHOW(pcap_dispatch(a, -1, each, NULL));
	pcap_breakloop(a);
	SHOW(pcap_loop(a, -1, each, NULL));
	pcap_close(a);
	SHOW(pcap_lookupnet(device, &net, &mask, text));
	printf("%s\n", strerror(errno));
	a = pcap_open_live(device, 0, 1, 10, text);
	SHOW(a != NULL);
	SHOW(pcap_snapshot(a));
	pcap_close(a);
	a = pcap_create(device, text);
	SHOW(pcap_set_rfmon(a, 1));
	SHOW(pcap_activate(a) < 0);
	pcap_close(a);
}

static void report(void) {
	struct pcap_stat stat;
	if (pcap_stats(pcap, &stat) < 0)
		die("pcap_stats", pcap_geterr(pcap));
	printf("%ld frames, %u received, %u dropped, %ld times not in order\n", count, stat.recv, stat.drop, order_errors);
}

/* Reads the remaining frames. The handle is non-blocking. */
static void report_rest(void) {
	while (pcap_dispatch(pcap, -1, each, NULL) > 0)
		;
	report();
}

static void ended(int signal) {
	(void)signal;
	pcap_breakloop(pcap);
}

/* Counts frames until SIGINT. */
static void loop(const char *device, const char *expression, unsigned wait) {
	pcap = opened(device);
	delay = wait;
	if (expression && *expression)
		filter(expression);
	signal(SIGINT, ended);
	ready();
	int answer = pcap_loop(pcap, -1, each, NULL);
	if (answer != -2)
		die("pcap_loop", pcap_geterr(pcap));
	delay = 0;
	pcap_setnonblock(pcap, 1, text);
	report_rest();
}

/* Continues after errors, as ngrep does, until SIGINT. */
static void again(const char *device) {
	pcap = opened(device);
	signal(SIGINT, ended);
	ready();
	while (pcap_loop(pcap, -1, each, NULL) != -2) {
		printf("%s\n", pcap_geterr(pcap));
		fflush(stdout);
	}
}

/* Reads three frames, then sets a filter, which must also apply to frames received together with them. */
static void narrow(const char *device, const char *expression) {
	pcap = opened(device);
	if (pcap_dispatch(pcap, 3, each, NULL) != 3)
		die("pcap_dispatch", "three frames are there");
	filter(expression);
	if (pcap_loop(pcap, -1, each, NULL) != 0)
		die("pcap_loop", pcap_geterr(pcap));
	report();
}

/* Waits for the descriptor by select(2) or poll(2), and reads the available frames. */
static void wait_for(const char *device, const char *how, long frames) {
	pcap = opened(device);
	int is_next = !strcmp(how, "next"), fd = pcap_get_selectable_fd(pcap);
	pcap_setnonblock(pcap, 1, text);
	filter("udp");
	ready();
	while (count < frames) {
		struct pollfd event = { fd, POLLIN, 0 };
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		if (strcmp(how, "select") ? poll(&event, 1, 20000) != 1 : select(fd + 1, &set, 0, 0, &(struct timeval){ 20, 0 }) != 1)
			die(how, "nothing came");
		struct pcap_pkthdr *header;
		const unsigned char *bytes;
		int answer = is_next ? pcap_next_ex(pcap, &header, &bytes) : pcap_dispatch(pcap, 3, each, NULL);
		if (is_next && answer == 1)
			each(NULL, header, bytes);
		if (answer < 0)
			die("pcap_dispatch", pcap_geterr(pcap));
	}
	report_rest();
}

/* Returns whether the descriptor is readable within this time. */
static int is_readable(pcap_t *handle, int milliseconds) {
	return poll(&(struct pollfd){ pcap_get_selectable_fd(handle), POLLIN, 0 }, 1, milliseconds);
}

/* Prints whether descriptors are readable: of a new handle, when another handle shares its port, and for a frame that
 * arrived before. */
static void quiet(const char *device) {
	pcap = opened(device);
	SHOW(is_readable(pcap, 0));
	pcap_t *other = opened(device);
	SHOW(is_readable(pcap, 0));
	SHOW(is_readable(other, 0));
	SHOW(pcap_setdirection(other, 1));
	SHOW(is_readable(other, 0));
	pcap_close(other);
	pcap_close(pcap);
	pcap = opened(device);
	ready();
	getchar();
	SHOW(is_readable(pcap, 20000));
	SHOW(pcap_dispatch(pcap, -1, each, NULL));
	pcap_close(pcap);
}

/* Waits for a UDP frame by blocking calls (`next`), or by poll(2) before each of them; prints the calls' results. */
static void refuse_others(const char *device, const char *how) {
	struct pcap_pkthdr *header;
	const unsigned char *bytes;
	pcap = opened(device);
	filter("udp");
	int answer, is_next = !strcmp(how, "next");
	SHOW(is_readable(pcap, 0));
	ready();
	do {
		if (!is_next && is_readable(pcap, 20000) != 1)
			die("poll", "no frame came");
		answer = pcap_next_ex(pcap, &header, &bytes);
		printf("pcap_next_ex: %d\n", answer);
		fflush(stdout);
	} while (answer == 0);
	pcap_close(pcap);
}

static void show_time(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
	each(user, header, bytes);
	printf("%ld%09ld\n", (long)header->ts.tv_sec, (long)header->ts.tv_usec);
}

/* Prints the times of frames. */
static void times(const char *device, long frames) {
	pcap = opened(device);
	ready();
	if (pcap_loop(pcap, frames, show_time, NULL) != 0)
		die("pcap_loop", pcap_geterr(pcap));
}

static void send_frames(const char *device, long frames) {
	pcap = opened(device);
	for (long n = 0; n < frames; n++) {
		frame[20] = n >> 8, frame[21] = n;
		if (n % 2 ? pcap_sendpacket(pcap, frame, 60) != 0 : pcap_inject(pcap, frame, 60) != 60)
			die("pcap_inject", pcap_geterr(pcap));
	}
	static unsigned char longest[70000];
	printf("too long: %d %s\n", pcap_inject(pcap, longest, sizeof longest), pcap_geterr(pcap));
	pcap_close(pcap);
	printf("sent\n");
}

static void list_devices(void) {
	struct pcap_if *all, *one;
	if (pcap_findalldevs(&all, text) < 0)
		die("pcap_findalldevs", text);
	for (one = all; one; one = one->next)
		printf("%s\n", one->name);
	pcap_freealldevs(all);
}

static void *break_soon(void *argument) {
	(void)argument;
	usleep(20000);
	pcap_breakloop(pcap);
	return NULL;
}

/* Ends loops from another thread, from a signal handler, and from the callback. */
static void leave_early(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
	each(user, header, bytes);
	if (count == 5)
		pcap_breakloop(pcap);
}

static jmp_buf away;
static void jump(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
	each(user, header, bytes);
	if (count == 3)
		longjmp(away, 1);
}

static void breaks(const char *device) {
	pthread_t thread;
	pcap = opened(device);
	filter("tcp port 1");
	pthread_create(&thread, NULL, break_soon, NULL);
	SHOW(pcap_loop(pcap, -1, each, NULL));
	pthread_join(thread, NULL);
	struct sigaction action = { .sa_handler = ended };
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 20000 } }, NULL);
	SHOW(pcap_dispatch(pcap, -1, each, NULL));
	filter("");
	ready();
	SHOW(pcap_loop(pcap, -1, leave_early, NULL));
	SHOW(count);
	count = 0;
	if (!setjmp(away))
		pcap_loop(pcap, -1, jump, NULL);
	SHOW(count);
	SHOW(pcap_loop(pcap, 4, each, NULL));
	SHOW(count);
	pcap_close(pcap);
}

static volatile long handled, sent, failed;

/* Makes the calls that are allowed while another call with the handle is running. `may_be_at_work`: this is a signal
 * handler. */
static void call_beside(int may_be_at_work) {
	struct pcap_stat stat;
	if (pcap_stats(pcap, &stat) != 0 || pcap_fileno(pcap) < 0 || pcap_get_selectable_fd(pcap) < 0 || pcap_snapshot(pcap) < 0)
		failed++;
	if (pcap_inject(pcap, frame, sizeof frame) == sizeof frame)
		sent++;
	else if (!may_be_at_work || !strstr(pcap_geterr(pcap), "a signal handler has interrupted"))
		failed++;
}

static void interrupted(int signal) {
	(void)signal;
	call_beside(1);
	handled++;
}

static void *loop_until_break(void *answer) {
	*(int *)answer = pcap_loop(pcap, -1, each, NULL);
	return NULL;
}

/* Uses a handle while another thread waits for frames, and from signal handlers that interrupt that thread. */
static void beside(const char *device) {
	pthread_t thread;
	int answer = 0;
	pcap = opened(device);
	filter("tcp port 1");
	pthread_create(&thread, NULL, loop_until_break, &answer);
	for (int n = 0; n < 1000; n++) {
		call_beside(0);
		sched_yield();
	}
	printf("%ld sent, %ld failed\n", sent, failed);
	signal(SIGUSR1, interrupted);
	sent = 0;
	for (long n = 1; n <= 200 || sent == 0; n++) {
		pthread_kill(thread, SIGUSR1);
		while (handled < n)
			sched_yield();
	}
	printf("%ld failed in a handler\n", failed);
	/* Set another filter for the following frames. */
	filter("");
	ready();
	while (*(volatile long *)&count == 0)
		sched_yield();
	pcap_breakloop(pcap);
	pthread_join(thread, NULL);
	SHOW(answer);
	/* A handler interrupts a sending thread. */
	signal(SIGALRM, interrupted);
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 100 }, { 0, 100 } }, NULL);
	handled = 0;
	while (handled < 300)
		if (pcap_inject(pcap, frame, sizeof frame) != sizeof frame)
			failed++;
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 0 } }, NULL);
	printf("%ld failed while sending\n", failed);
	pcap_close(pcap);
}

static long descriptors(void) {
	long open = 0;
	DIR *folder = opendir("/proc/self/fd");
	while (readdir(folder))
		open++;
	closedir(folder);
	return open;
}

/* Opens, uses and closes handles in random order. */
static void churn(const char *device, long rounds, unsigned seed) {
	pcap_t *held[4] = { 0 };
	pcap_close(opened(device));
	long before = descriptors();
	srandom(seed);
	for (long n = 0; n < rounds; n++) {
		pcap_t **at = &held[random() % 4];
		if (!*at) {
			if (!(*at = pcap_create(device, text)))
				die("pcap_create", text);
			continue;
		}
		pcap = *at;
		struct pcap_pkthdr *header;
		const unsigned char *bytes;
		struct pcap_stat stat;
		struct bpf_program program;
		switch (random() % 9) {
		case 0:
			pcap_activate(pcap);
			break;
		case 1:
			if (pcap_compile(pcap, &program, "udp or arp", random() % 2, 0) == 0) {
				pcap_setfilter(pcap, &program);
				pcap_freecode(&program);
			}
			break;
		case 2:
			pcap_breakloop(pcap);
			break;
		case 3:
			pcap_setnonblock(pcap, 1, text);
			pcap_dispatch(pcap, random() % 50 - 1, each, NULL);
			break;
		case 4:
			pcap_setnonblock(pcap, 1, text);
			pcap_next_ex(pcap, &header, &bytes);
			break;
		case 5:
			pcap_setnonblock(pcap, 0, text);
			pcap_breakloop(pcap);
			pcap_loop(pcap, -1, each, NULL);
			break;
		case 6:
			pcap_get_selectable_fd(pcap);
			pcap_stats(pcap, &stat);
			break;
		case 7:
			pcap_setdirection(pcap, random() % 4);
			break;
		default:
			pcap_close(pcap);
			*at = NULL;
		}
	}
	for (int n = 0; n < 4; n++)
		if (held[n])
			pcap_close(held[n]);
	printf("%ld descriptors more\n", descriptors() - before);
}

/* Waits for frames by poll(2); prints how often it was woken without a frame. */
static void wakes(const char *device, long frames) {
	pcap = opened(device);
	pcap_setnonblock(pcap, 1, text);
	struct pollfd event = { pcap_get_selectable_fd(pcap), POLLIN, 0 };
	long in_vain = 0;
	while (count < frames) {
		if (poll(&event, 1, 20000) != 1)
			die("poll", "no frame came");
		in_vain += pcap_dispatch(pcap, -1, each, NULL) == 0;
	}
	printf("%ld frames, %ld in vain\n", count, in_vain);
	pcap_close(pcap);
}

/* Runs `work` in one child after the other. The parent captures with its handle after each. */
static void in_children(const char *device, long rounds, void (*work)(const char *), const char *argument) {
	pcap = opened(device);
	for (long n = 0; n < rounds; n++) {
		int status;
		pid_t child = fork();
		if (child == 0) {
			alarm(60);
			work(argument);
			_exit(7);
		}
		if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
			die("fork", "the child has not ended well");
		pcap_loop(pcap, 3, each, NULL);
	}
	printf("%ld frames\n", count);
	pcap_close(pcap);
}

/* Closes the parent's handle; before, sending and receiving must fail. */
static void close_parents(const char *none) {
	(void)none;
	struct pcap_pkthdr *header;
	const unsigned char *bytes;
	/* Twice: with frames received before the fork, and without. */
	for (int n = 0; n < 2; n++)
		if (pcap_inject(pcap, frame, 60) != -1 || pcap_next_ex(pcap, &header, &bytes) == 0 ||
		    pcap_loop(pcap, -1, each, NULL) != -1 || !strstr(pcap_geterr(pcap), "open the port in this process"))
			_exit(1);
	pcap_close(pcap);
}

/* Captures from a port of its own. */
static void capture_own(const char *device) {
	pcap = opened(device);
	pcap_loop(pcap, 3, each, NULL);
	pcap_close(pcap);
}

/* A child and its parent send at the same time, after the parent has already sent. */
static void send_beside_child(const char *device, long frames) {
	int status;
	pcap = opened(device);
	unsigned char mark = 0;
	for (long n = -1; n < frames; n++) {
		pid_t child = n == 0 ? fork() : 1;
		mark |= child == 0;
		frame[20] = mark, frame[21] = n + 1;
		if (pcap_inject(pcap, frame, 60) != 60)
			die("pcap_inject", pcap_geterr(pcap));
	}
	if (mark)
		pcap_close(pcap), _exit(7);
	if (wait(&status) < 0 || WEXITSTATUS(status) != 7)
		die("wait", "the child has failed");
	pcap_close(pcap);
	printf("sent\n");
}

/* A child cannot send while its parent runs, but can afterwards, as a daemon does. */
static void become_daemon(const char *device) {
	int gate[2];
	char none;
	pcap = opened(device);
	if (pcap_inject(pcap, frame, 60) != 60 || pipe(gate) != 0)
		die("pcap_inject", pcap_geterr(pcap));
	if (fork() != 0) {
		close(gate[1]);
		_exit(read(gate[0], &none, 1) != 0);
	}
	alarm(60);
	printf("%d %s\n", pcap_inject(pcap, frame, 60), pcap_geterr(pcap));
	close(gate[1]);
	int sent;
	while ((sent = pcap_inject(pcap, frame, 60)) == -1)
		;
	printf("%d\n", sent);
	fflush(stdout);
	/* A child of this process cannot send either. */
	if (fork() == 0)
		_exit(pcap_inject(pcap, frame, 60) == -1 ? 7 : 1);
	if (wait(&gate[0]) < 0 || WEXITSTATUS(gate[0]) != 7)
		die("fork", "the second one has sent, too");
	pcap_close(pcap);
}

static volatile int is_full;

static void *send_in_vain(void *none) {
	for (;;)
		is_full |= pcap_inject(pcap, frame, 60) < 0;
	return none;
}

/* A child gets statistics although a thread that exists only in the parent is sending. */
static void ask_in_child(const char *device) {
	pthread_t thread;
	struct pcap_stat stat;
	int status;
	pcap = opened(device);
	pthread_create(&thread, NULL, send_in_vain, NULL);
	while (!is_full)
		usleep(1000);
	for (int n = 0; n < 3; n++) {
		if (fork() == 0) {
			alarm(60);
			_exit(pcap_stats(pcap, &stat) == 0 ? 7 : 1);
		}
		if (wait(&status) < 0 || WEXITSTATUS(status) != 7)
			die("pcap_stats", "the child has not ended");
	}
	printf("asked\n");
	fflush(stdout);
	_exit(0);
}

struct reader { pcap_t *pcap; long frames, most; };

static void tally(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
	(void)header, (void)bytes;
	((struct reader *)user)->frames++;
}

/* Reads `most` frames: this function in a loop, `poll_for` by waiting for the descriptor. */
static void *loop_for(void *argument) {
	struct reader *reader = argument;
	pcap_loop(reader->pcap, reader->most, tally, argument);
	return NULL;
}

static void *poll_for(void *argument) {
	struct reader *reader = argument;
	char error[256];
	pcap_setnonblock(reader->pcap, 1, error);
	struct pollfd event = { pcap_get_selectable_fd(reader->pcap), POLLIN, 0 };
	while (reader->frames < reader->most && poll(&event, 1, 20000) == 1)
		pcap_dispatch(reader->pcap, -1, tally, argument);
	return NULL;
}

/* Several handles on one device. The second is opened when the first has read some frames and is waiting, the third while
 * threads wait on both. Each handle must get all later frames. */
static void several(const char *device) {
	struct reader readers[3] = { { opened(device), 0, 3 } };
	struct pcap_stat stat;
	pthread_t threads[3];
	alarm(60);
	ready();
	loop_for(&readers[0]);
	readers[0].most = 110;
	pthread_create(&threads[0], NULL, poll_for, &readers[0]);
	readers[1] = (struct reader){ opened(device), 0, 100 };
	pthread_create(&threads[1], NULL, loop_for, &readers[1]);
	readers[2] = (struct reader){ opened(device), 0, 100 };
	pthread_create(&threads[2], NULL, poll_for, &readers[2]);
	ready();
	for (int n = 0; n < 3; n++)
		pthread_join(threads[n], NULL);
	for (int n = 0; n < 3; n++) {
		pcap_stats(readers[n].pcap, &stat);
		printf("%d: %ld frames, %u dropped\n", n, readers[n].frames, stat.drop);
		if (pcap_inject(readers[n].pcap, frame, 60) != 60)
			die("pcap_inject", pcap_geterr(readers[n].pcap));
		pcap_close(readers[n].pcap);
	}
}

/* Prints whether the system's libpcap is loaded once a handle exists. */
static void load_early(const char *device) {
	char line[4096];
	int is_there = 0;
	pcap = pcap_create(device, text);
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		is_there |= strstr(line, "/libpcap.so.1") != NULL;
	fclose(maps);
	pcap_close(pcap);
	SHOW(is_there);
}

static volatile long cleaned;
static volatile int is_in_callback;

static void clean(void *none) {
	(void)none;
	cleaned++;
}

static void stay(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
	(void)user, (void)header, (void)bytes;
	is_in_callback = 1;
	for (;;)
		pause();
}

enum { LOOP, DISPATCH, NEXT, NEXT_EX, DESCRIPTOR, INJECT, CALLBACK, WAYS };
static const char *const ways[WAYS] = { "pcap_loop", "pcap_dispatch", "pcap_next", "pcap_next_ex", "poll", "pcap_inject", "callback" };
struct victim { int way, type; volatile int begun; };

/* Makes one kind of call until the thread is cancelled. */
static void *call_until_cancelled(void *argument) {
	struct victim *victim = argument;
	struct pcap_pkthdr header, *at;
	const unsigned char *bytes;
	struct pollfd event = { pcap_get_selectable_fd(pcap), POLLIN, 0 };
	pthread_setcanceltype(victim->type, NULL);
	pthread_cleanup_push(clean, NULL);
	victim->begun = 1;
	for (;;)
		switch (victim->way) {
		case LOOP: pcap_loop(pcap, -1, each, NULL); break;
		case DISPATCH: pcap_dispatch(pcap, 3, each, NULL); break;
		case NEXT: pcap_next(pcap, &header); break;
		case NEXT_EX: pcap_next_ex(pcap, &at, &bytes); break;
		case DESCRIPTOR: poll(&event, 1, -1), pcap_dispatch(pcap, 1, each, NULL); break;
		case INJECT: pcap_inject(pcap, frame, sizeof frame); break;
		default: pcap_loop(pcap, -1, stay, NULL);
		}
	pthread_cleanup_pop(0);
	return NULL;
}

/* Waits until a thread of this process sleeps (proc_pid_stat(5)), for at most 20 seconds. */
static void wait_for_sleep_of(long thread) {
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
	for (time_t end = time(NULL) + 20; time(NULL) < end; sched_yield()) {
		FILE *file = fopen(path, "r");
		char *state = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
		if (file)
			fclose(file);
		if (state && state[2] == 'S')
			return;
	}
	die("a thread", "it does not sleep");
}

static volatile long thread_number;

static void *numbered(void *argument) {
	thread_number = syscall(SYS_gettid);
	return call_until_cancelled(argument);
}

/* Cancels threads in each kind of call, with both cancellation types; then uses and closes the handle. With `rounds`,
 * threads are cancelled at any moment, otherwise while they sleep. */
static void cancel(const char *device, long rounds) {
	alarm(300);
	/* Most threads use the handle of the ones before: no lock may remain held. */
	pcap = opened(device);
	for (int way = 0; way < WAYS; way++)
		for (int type = 0; type < 2; type++)
			for (long n = 0; n < (rounds ? rounds : 2); n++) {
				struct victim victim = { way, type ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, 0 };
				pthread_t thread;
				void *answer = NULL;
				struct pcap_stat stat;
				long before = cleaned;
				thread_number = 0;
				is_in_callback = 0;
				if (rounds == 0 && way == CALLBACK)
					continue;
				pthread_create(&thread, NULL, numbered, &victim);
				while (!victim.begun || (way == CALLBACK && !is_in_callback))
					sched_yield();
				if (rounds == 0 && way != INJECT)
					wait_for_sleep_of(thread_number);
				for (long pause = n % 50; pause > 0; pause--)
					sched_yield();
				pthread_cancel(thread);
				pthread_join(thread, &answer);
				if (answer != PTHREAD_CANCELED || cleaned != before + 1)
					die(ways[way], "the thread was not cancelled");
				if (pcap_stats(pcap, &stat) != 0 || pcap_inject(pcap, frame, sizeof frame) != sizeof frame)
					die(ways[way], pcap_geterr(pcap));
				filter("");
				pcap_setnonblock(pcap, 1, text);
				if (pcap_dispatch(pcap, 1, each, NULL) < 0)
					die(ways[way], pcap_geterr(pcap));
				pcap_setnonblock(pcap, 0, text);
				if (n == 1) {
					pcap_close(pcap);
					pcap = opened(device);
				}
			}
	pcap_close(pcap);
	printf("%ld cancelled\n", cleaned);
}

#define CALL(name) { #name, SYS_##name }
static const struct { const char *name; unsigned number; } calls[] = {
	CALL(brk), CALL(bind), CALL(clock_nanosleep), CALL(clone3), CALL(close), CALL(connect), CALL(epoll_create1), CALL(epoll_ctl),
	CALL(eventfd2), CALL(fcntl), CALL(fstat), CALL(fstatfs), CALL(ftruncate), CALL(futex), CALL(getpid),
	CALL(getrandom), CALL(getsockopt), CALL(ioctl), CALL(memfd_create), CALL(mmap), CALL(mprotect), CALL(munmap),
	CALL(newfstatat), CALL(openat), CALL(ppoll), CALL(prctl), CALL(preadv2), CALL(process_vm_readv), CALL(read),
	CALL(readlink), CALL(recvmsg), CALL(rseq), CALL(rt_sigaction), CALL(rt_sigprocmask), CALL(sched_yield),
	CALL(sendmsg), CALL(sendto), CALL(set_robust_list), CALL(setsockopt), CALL(socket), CALL(statx), CALL(write)
};

/* Allows only the system calls of this list; others fail with EPERM. */
static void forbid_all_but(const char *allowed) {
	enum { MOST = 64 };
	struct sock_filter code[3 + 2 * MOST] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
	struct sock_fprog program = { 1, code };
	/* The program itself needs these to add another filter and to exit. */
	static const unsigned own[] = { SYS_seccomp, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_restart_syscall };
	char list[2048], *rest = list;
	snprintf(list, sizeof list, "%s", allowed);
	unsigned numbers[MOST], most = 0;
	for (; most < sizeof own / sizeof *own; most++)
		numbers[most] = own[most];
	for (char *name; (name = strsep(&rest, " "));) {
		size_t n = 0;
		while (n < sizeof calls / sizeof *calls && strcmp(calls[n].name, name))
			n++;
		if (n == sizeof calls / sizeof *calls || most == MOST)
			die("a system call that the program does not know", name);
		numbers[most++] = calls[n].number;
	}
	for (unsigned n = 0; n < most; n++) {
		code[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[n], 0, 1);
		code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
		die("seccomp", strerror(errno));
	if (kill(getpid(), 0) != -1 || errno != EPERM)
		die("seccomp", "kill(2) is allowed");
}

/* Opens a port with the first list of system calls allowed, sends a frame with the second, receives with the third. */
static void filtered(const char *device, const char *to_activate, const char *to_send, const char *frames) {
	pcap = pcap_create(device, text);
	if (!pcap)
		die("pcap_create", text);
	pcap_set_promisc(pcap, 1), pcap_set_immediate_mode(pcap, 1);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		die("prctl", strerror(errno));
	forbid_all_but(to_activate);
	if (pcap_activate(pcap) != 0)
		die("pcap_activate", pcap_geterr(pcap));
	forbid_all_but(to_send);
	if (pcap_inject(pcap, frame, 60) != 60)
		die("pcap_inject", pcap_geterr(pcap));
	forbid_all_but(frames);
	ready();
	struct pcap_stat stat;
	if (pcap_loop(pcap, 3, each, NULL) != 0 || pcap_inject(pcap, frame, 60) != 60 || pcap_stats(pcap, &stat) != 0)
		die("pcap_loop", pcap_geterr(pcap));
	printf("%ld frames\n", count);
	fflush(stdout);
	_exit(0);
}

/* Drops its privileges (`setuid`) or its file system (`chroot`) after opening the port, then sends. */
static void restricted(const char *device, const char *how) {
	pcap = opened(device);
	if (!strcmp(how, "setuid") ? setgid(65534) || setuid(65534) : chroot("/var/empty") && (chroot("/proc/self/fdinfo") || chdir("/")))
		die(how, strerror(errno));
	for (int n = 0; n < 3; n++)
		if (pcap_inject(pcap, frame, 60) != 60)
			die("pcap_inject", pcap_geterr(pcap));
	printf("sent\n");
	fflush(stdout);
	if (pcap_loop(pcap, 3, each, NULL) != 0)
		die("pcap_loop", pcap_geterr(pcap));
	printf("%ld frames\n", count);
	pcap_close(pcap);
}

int main(int argc, char **argv) {
	const char *what = argv[1], *device = argc > 2 ? argv[2] : "", *third = argc > 3 ? argv[3] : "0";
	if (!strcmp(what, "api"))
		api(device);
	else if (!strcmp(what, "outgoing")) {
		pcap = opened(device);
		int answer = pcap_setdirection(pcap, 2);
		printf("%d %s\n", answer, pcap_geterr(pcap));
	} else if (!strcmp(what, "loop"))
		loop(device, argc > 4 ? argv[4] : "", atoi(third));
	else if (!strcmp(what, "again"))
		again(device);
	else if (!strcmp(what, "select") || !strcmp(what, "poll") || !strcmp(what, "next"))
		wait_for(device, what, atol(third));
	else if (!strcmp(what, "quiet"))
		quiet(device);
	else if (!strcmp(what, "refuse"))
		refuse_others(device, third);
	else if (!strcmp(what, "narrow"))
		narrow(device, third);
	else if (!strcmp(what, "times"))
		times(device, atol(third));
	else if (!strcmp(what, "send"))
		send_frames(device, atol(third));
	else if (!strcmp(what, "list"))
		list_devices();
	else if (!strcmp(what, "break"))
		breaks(device);
	else if (!strcmp(what, "beside"))
		beside(device);
	else if (!strcmp(what, "wakes"))
		wakes(device, atol(third));
	else if (!strcmp(what, "filtered"))
		filtered(device, third, argv[4], argv[5]);
	else if (!strcmp(what, "restricted"))
		restricted(device, third);
	else if (!strcmp(what, "texts"))
		printf("%s\n%s\n%s\n", pcap_lib_version(), pcap_strerror(2), pcap_statustostr(-1));
	else if (!strcmp(what, "child"))
		in_children(device, atol(third), close_parents, NULL);
	else if (!strcmp(what, "opens"))
		in_children(device, atol(argv[4]), capture_own, third);
	else if (!strcmp(what, "asks"))
		ask_in_child(device);
	else if (!strcmp(what, "daemon"))
		become_daemon(device);
	else if (!strcmp(what, "both"))
		send_beside_child(device, atol(third));
	else if (!strcmp(what, "early"))
		load_early(device);
	else if (!strcmp(what, "several"))
		several(device);
	else if (!strcmp(what, "cancel"))
		cancel(device, atol(third));
	else if (!strcmp(what, "churn"))
		churn(device, atol(third), atoi(argv[4]));
	return 0;
}
