/*
 * A netmap program for the tests, which uses only netmap's interface.
 *
 *     program send PORT COUNT LEN WAIT      sends frames with sequence numbers, then waits until all are taken
 *     program indirect PORT COUNT LEN       sends such frames from its own memory, each in one slot (NS_INDIRECT)
 *     program receive PORT COUNT WAIT       receives COUNT frames, which must be intact and in order
 *     program bridge PORT PORT COUNT WAIT   forwards COUNT frames from the first port to the second, without copies if
 *                                           possible
 *     program hear PORT                     prints the type of each broadcast, and the addresses of frames from `say`
 *     program say PORT TO FROM FLAGS        sends one frame to 02:..:TO (hexadecimal; ff: broadcast), and stays; its
 *                                           slot has the flags; with NS_INDIRECT the bytes are in the program's memory
 *     program pass PORT                     passes all packets between card and host (NS_FORWARD); PORT ends in "*"
 *     program hold PORT COUNT               leaves COUNT frames in a port's receive ring: the port's zero-copy monitor must
 *                                           get them only after they are released
 *     program keep PORT COUNT LEN           sends COUNT frames into a pipe, and prints "blocked": the zero-copy monitor of
 *                                           this end must get them only after the other end has released them
 *     program open PORT                     opens the port, and waits to be killed
 *     program fill PORT                     sends until it is killed
 *
 * WAIT is poll, select, epoll or busy. PORT is a name in netmap's grammar, without "netmap:"; the prefix "old:" selects
 * the API before version 12. The program prints "ready" when its ports are open, and frame counts at the end. It exits
 * with 0 on success.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/netmap.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <unistd.h>

struct port {
	int fd, epoll, epoll_events;
	struct netmap_if *nifp;
	uint16_t mem_id;
	char *memory;
	/* The port's rings, as half-open ranges. */
	unsigned tx, tx_end, rx, rx_end;
};

/* Frames received so far. */
static uint64_t received;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s, %llu frames were received\n", what, strerror(errno), (unsigned long long)received);
	exit(1);
}

/* Exits unless a wait has returned one event without an error. */
static void must_be_one(const char *what, int count, int is_error)
{
	if (count == 0)
		errno = ETIMEDOUT;
	if (count == 1 && is_error)
		errno = EIO;
	if (count != 1 || is_error)
		fail(what);
}

/* Parses the suffixes of netmap's names: ^, *, -N, @N, and /rtzxRT. */
static void suffix(const char *text, struct nmreq_register *reg)
{
	reg->nr_mode = NR_REG_ALL_NIC;
	for (; *text; text++)
		switch (*text) {
		case '^':
			reg->nr_mode = NR_REG_SW;
			break;
		case '*':
			reg->nr_mode = NR_REG_NIC_SW;
			break;
		case '-':
			reg->nr_mode = NR_REG_ONE_NIC;
			reg->nr_ringid = strtoul(text + 1, (char **)&text, 10);
			text--;
			break;
		case '@':
			reg->nr_mem_id = strtoul(text + 1, (char **)&text, 10);
			text--;
			break;
		case 'r':
			reg->nr_flags |= NR_MONITOR_RX;
			break;
		case 't':
			reg->nr_flags |= NR_MONITOR_TX;
			break;
		case 'z':
			reg->nr_flags |= NR_ZCOPY_MON;
			break;
		case 'x':
			reg->nr_flags |= NR_EXCLUSIVE;
			break;
		case 'R':
			reg->nr_flags |= NR_RX_RINGS_ONLY;
			break;
		case 'T':
			reg->nr_flags |= NR_TX_RINGS_ONLY;
			break;
		}
}

static void open_port(struct port *port, const char *name, const struct port *shared)
{
	size_t offset, size;
	int old = strncmp(name, "old:", 4) == 0;
	name += old ? 4 : 0;
	size_t len = strcspn(name, "^*-/@");
	struct nmreq_register reg = {0};
	suffix(name + len, &reg);
	/* A "#" at the end requests two rings in each direction. */
	if (strchr(name, '#'))
		reg.nr_tx_rings = reg.nr_rx_rings = 2;
	len = strcspn(name, "^*-/@#");
	if ((port->fd = open("/dev/netmap", O_RDWR)) < 0)
		fail("/dev/netmap");
	if (old) {
		struct nmreq req = {.nr_version = 11, .nr_flags = reg.nr_mode};
		memcpy(req.nr_name, name, len);
		if (ioctl(port->fd, NIOCREGIF, &req) < 0)
			fail(name);
		offset = req.nr_offset, size = req.nr_memsize, port->mem_id = req.nr_arg2;
	} else {
		struct nmreq_header header = {.nr_version = NETMAP_API, .nr_reqtype = NETMAP_REQ_REGISTER};
		memcpy(header.nr_name, name, len);
		header.nr_body = (uintptr_t)&reg;
		if (ioctl(port->fd, NIOCCTRL, &header) < 0)
			fail(name);
		offset = reg.nr_offset, size = reg.nr_memsize, port->mem_id = reg.nr_mem_id;
	}
	if (shared && shared->mem_id == port->mem_id)
		port->memory = shared->memory;
	else if ((port->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, port->fd, 0)) == MAP_FAILED)
		fail("mmap");
	struct netmap_if *nifp = port->nifp = NETMAP_IF(port->memory, offset);
	unsigned txs = nifp->ni_tx_rings + nifp->ni_host_tx_rings, rxs = nifp->ni_rx_rings + nifp->ni_host_rx_rings;
	for (port->tx = 0; port->tx < txs && !nifp->ring_ofs[port->tx]; port->tx++)
		;
	for (port->tx_end = port->tx; port->tx_end < txs && nifp->ring_ofs[port->tx_end]; port->tx_end++)
		;
	for (port->rx = 0; port->rx < rxs && !nifp->ring_ofs[txs + port->rx]; port->rx++)
		;
	for (port->rx_end = port->rx; port->rx_end < rxs && nifp->ring_ofs[txs + port->rx_end]; port->rx_end++)
		;
	port->epoll = -1;
}

/* Waits until the port has a packet or room to send; exits if the port is gone. */
static void wait_for(struct port *port, const char *how, int send)
{
	if (!strcmp(how, "busy")) {
		if (ioctl(port->fd, send ? NIOCTXSYNC : NIOCRXSYNC, NULL) < 0)
			fail("sync");
	} else if (!strcmp(how, "select")) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(port->fd, &set);
		struct timeval longest = {.tv_sec = 20};
		must_be_one("select", select(port->fd + 1, send ? NULL : &set, send ? &set : NULL, NULL, &longest), 0);
	} else if (!strcmp(how, "epoll")) {
		struct epoll_event event = {.events = send ? EPOLLOUT : EPOLLIN, .data.u64 = 77};
		if (port->epoll < 0 && (port->epoll = epoll_create1(0)) < 0)
			fail("epoll");
		if (port->epoll_events != (int)event.events &&
		    epoll_ctl(port->epoll, port->epoll_events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, port->fd, &event) < 0)
			fail("epoll_ctl");
		port->epoll_events = event.events;
		struct epoll_event got[4];
		int count = epoll_wait(port->epoll, got, 4, 20000);
		must_be_one("epoll_wait", count, got[0].data.u64 != 77 || got[0].events & EPOLLERR);
	} else {
		struct pollfd event = {.fd = port->fd, .events = send ? POLLOUT : POLLIN};
		int count = poll(&event, 1, 20000);
		must_be_one("poll", count, event.revents & POLLERR);
	}
}

static void ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

/* Returns byte n of frame `number`, after two addresses, a type and the number. */
static char pattern(uint64_t number, size_t n)
{
	return (char)(number * 31 + n * 7);
}

static void put(char *bytes, uint64_t number, size_t at, size_t len)
{
	for (size_t n = at; n < at + len; n++)
		if (n < 6)
			bytes[n - at] = (char)0xff;
		else if (n < 12)
			bytes[n - at] = 2;
		else if (n < 14)
			bytes[n - at] = n == 12 ? (char)0x88 : (char)0xb5;
		else if (n < 22)
			bytes[n - at] = (char)(number >> (n - 14) * 8);
		else
			bytes[n - at] = pattern(number, n);
}

static void put_frames(struct port *port, uint64_t count, size_t len, const char *how);
static void await_taken(struct port *port);

static void send_frames(const char *name, uint64_t count, size_t len, const char *how)
{
	struct port port = {0};
	open_port(&port, name, NULL);
	ready();
	put_frames(&port, count, len, how);
	await_taken(&port);
	printf("sent %llu\n", (unsigned long long)count);
	close(port.fd);
}

/* Puts frames into the first transmit ring. */
static void put_frames(struct port *port, uint64_t count, size_t len, const char *how)
{
	uint64_t sent = 0;
	struct netmap_ring *ring = NETMAP_TXRING(port->nifp, port->tx);
	uint32_t parts = (len + ring->nr_buf_size - 1) / ring->nr_buf_size;
	while (sent < count) {
		wait_for(port, how, 1);
		/* Programs may use `sem` (netmap's lb keeps its state there). */
		memset(ring->sem, 0xA5, sizeof(ring->sem));
		/* Use only one ring: the other end checks the frames' order. */
		while (sent < count && nm_ring_space(ring) >= parts) {
			for (size_t at = 0; at < len; at += ring->nr_buf_size) {
				struct netmap_slot *slot = &ring->slot[ring->head];
				size_t part = len - at < ring->nr_buf_size ? len - at : ring->nr_buf_size;
				put(NETMAP_BUF(ring, slot->buf_idx), sent, at, part);
				slot->len = part;
				slot->flags = at + part < len ? NS_MOREFRAG : 0;
				ring->head = ring->cur = nm_ring_next(ring, ring->head);
			}
			sent++;
		}
	}
}

/* Waits until the port has taken all sent frames. */
static void await_taken(struct port *port)
{
	while (nm_tx_pending(NETMAP_TXRING(port->nifp, port->tx)))
		if (ioctl(port->fd, NIOCTXSYNC, NULL) < 0)
			fail("sync");
}

static void send_indirectly(const char *name, uint64_t count, size_t len)
{
	struct port port = {0};
	open_port(&port, name, NULL);
	ready();
	static char frame[65535];
	struct netmap_ring *ring = NETMAP_TXRING(port.nifp, port.tx);
	for (uint64_t sent = 0; sent < count; sent++) {
		while (nm_ring_space(ring) == 0)
			wait_for(&port, "poll", 1);
		put(frame, sent, 0, len);
		struct netmap_slot *slot = &ring->slot[ring->head];
		slot->ptr = (uintptr_t)frame;
		slot->len = len;
		slot->flags = NS_INDIRECT;
		ring->head = ring->cur = nm_ring_next(ring, ring->head);
		/* After this, the program may reuse the bytes. */
		if (ioctl(port.fd, NIOCTXSYNC, NULL) < 0)
			fail("sync");
	}
	while (nm_tx_pending(ring))
		if (ioctl(port.fd, NIOCTXSYNC, NULL) < 0)
			fail("sync");
	printf("sent %llu\n", (unsigned long long)count);
	/* Each slot must still have its own buffer. */
	for (unsigned n = 0; n < ring->num_slots; n++)
		for (unsigned m = 0; m < n; m++)
			if (ring->slot[n].buf_idx == ring->slot[m].buf_idx)
				exit(1);
	close(port.fd);
}

static void pass(const char *name)
{
	struct port port = {0};
	open_port(&port, name, NULL);
	for (unsigned n = port.rx; n < port.rx_end; n++)
		NETMAP_RXRING(port.nifp, n)->flags |= NR_FORWARD;
	ready();
	for (;;) {
		wait_for(&port, "poll", 0);
		for (unsigned n = port.rx; n < port.rx_end; n++) {
			struct netmap_ring *ring = NETMAP_RXRING(port.nifp, n);
			for (; !nm_ring_empty(ring); ring->head = ring->cur = nm_ring_next(ring, ring->head))
				ring->slot[ring->head].flags |= NS_FORWARD;
		}
	}
}

/* Receives frames from all rings; prints counts, and exits. */
static void take_frames(struct port *port, uint64_t count, const char *how)
{
	static char frame[NETMAP_MAX_FRAGS * 2048];
	uint64_t bad = 0, disordered = 0, next = 0;
	size_t len = 0;
	for (unsigned n = port->rx; n < port->rx_end; n++)
		NETMAP_RXRING(port->nifp, n)->flags |= NR_TIMESTAMP;
	while (received < count) {
		wait_for(port, how, 0);
		for (unsigned n = port->rx; n < port->rx_end; n++) {
			struct netmap_ring *ring = NETMAP_RXRING(port->nifp, n);
			bad += ring->ts.tv_sec == 0;
			memset(ring->sem, 0x5A, sizeof(ring->sem));
			while (!nm_ring_empty(ring)) {
				struct netmap_slot *slot = &ring->slot[ring->head];
				memcpy(frame + len, NETMAP_BUF(ring, slot->buf_idx), slot->len);
				len += slot->len;
				int more = slot->flags & NS_MOREFRAG;
				ring->head = ring->cur = nm_ring_next(ring, ring->head);
				if (more)
					continue;
				if (len >= 22 && frame[12] == (char)0x88 && frame[13] == (char)0xb5) {
					uint64_t number = 0;
					for (int byte = 0; byte < 8; byte++)
						number |= (uint64_t)(unsigned char)frame[14 + byte] << byte * 8;
					for (size_t at = 22; at < len; at++)
						if (frame[at] != pattern(number, at)) {
							bad++;
							break;
						}
					disordered += number < next;
					next = number + 1;
					received++;
				}
				len = 0;
			}
		}
	}
	/* Release the last slots, since other descriptors may share the rings. A monitored port may be closed by now. */
	(void)ioctl(port->fd, NIOCRXSYNC, NULL);
	printf("received %llu bad %llu disordered %llu missing %llu\n", (unsigned long long)received,
	       (unsigned long long)bad, (unsigned long long)disordered, (unsigned long long)(next - received));
	close(port->fd);
	exit(bad || disordered ? 1 : 0);
}

static void receive_frames(const char *name, uint64_t count, const char *how)
{
	struct port port = {0};
	open_port(&port, name, NULL);
	ready();
	take_frames(&port, count, how);
}

/* Opens the zero-copy monitor of a port that is open in this process. */
static void open_monitor(struct port *monitor, const char *name)
{
	char full[64];
	snprintf(full, sizeof(full), "%s/z", name);
	open_port(monitor, full, NULL);
}

/* Exits if the monitor has a packet. */
static void is_empty(struct port *monitor)
{
	if (ioctl(monitor->fd, NIOCRXSYNC, NULL) < 0)
		fail("sync");
	for (unsigned n = monitor->rx; n < monitor->rx_end; n++)
		if (!nm_ring_empty(NETMAP_RXRING(monitor->nifp, n))) {
			fprintf(stderr, "the monitor has a packet too early\n");
			exit(1);
		}
}

static void hold(const char *name, uint64_t count)
{
	struct port port = {0}, monitor = {0};
	open_port(&port, name, NULL);
	open_monitor(&monitor, name);
	ready();
	struct netmap_ring *ring = NETMAP_RXRING(port.nifp, port.rx);
	while (nm_ring_space(ring) < count) {
		/* Wake up when there are more frames than now. */
		ring->cur = ring->tail;
		wait_for(&port, "poll", 0);
	}
	is_empty(&monitor);
	ring->head = ring->cur = ring->tail;
	if (ioctl(port.fd, NIOCRXSYNC, NULL) < 0)
		fail("sync");
	take_frames(&monitor, count, "poll");
}

static void keep(const char *name, uint64_t count, size_t len)
{
	struct port port = {0}, monitor = {0};
	open_port(&port, name, NULL);
	open_monitor(&monitor, name);
	ready();
	put_frames(&port, count, len, "poll");
	if (ioctl(port.fd, NIOCTXSYNC, NULL) < 0)
		fail("sync");
	is_empty(&monitor);
	printf("blocked\n");
	fflush(stdout);
	await_taken(&port);
	take_frames(&monitor, count, "poll");
}

static void bridge(const char *from, const char *to, uint64_t count, const char *how)
{
	struct port a = {0}, b = {0};
	open_port(&a, from, NULL);
	open_port(&b, to, &a);
	ready();
	uint64_t moved = 0, swapped = 0;
	while (moved < count) {
		struct netmap_ring *tx = NETMAP_TXRING(b.nifp, b.tx);
		wait_for(&a, how, 0);
		wait_for(&b, how, 1);
		for (unsigned n = a.rx; n < a.rx_end; n++) {
			struct netmap_ring *rx = NETMAP_RXRING(a.nifp, n);
			while (moved < count && !nm_ring_empty(rx) && nm_ring_space(tx) > 0) {
				struct netmap_slot *in = &rx->slot[rx->head], *out = &tx->slot[tx->head];
				if (a.mem_id == b.mem_id) {
					uint32_t buffer = in->buf_idx;
					in->buf_idx = out->buf_idx, out->buf_idx = buffer;
					in->flags |= NS_BUF_CHANGED;
					swapped++;
				} else {
					memcpy(NETMAP_BUF(tx, out->buf_idx), NETMAP_BUF(rx, in->buf_idx), in->len);
				}
				out->len = in->len;
				out->flags = NS_BUF_CHANGED | (in->flags & NS_MOREFRAG);
				moved += !(in->flags & NS_MOREFRAG);
				rx->head = rx->cur = nm_ring_next(rx, rx->head);
				tx->head = tx->cur = nm_ring_next(tx, tx->head);
			}
		}
		if (ioctl(b.fd, NIOCTXSYNC, NULL) < 0)
			fail("sync");
	}
	while (nm_tx_pending(NETMAP_TXRING(b.nifp, b.tx)))
		if (ioctl(b.fd, NIOCTXSYNC, NULL) < 0)
			fail("sync");
	printf("moved %llu swapped %d\n", (unsigned long long)moved, swapped > 0);
	close(a.fd);
	close(b.fd);
}

static void hear(const char *name)
{
	struct port port = {0};
	open_port(&port, name, NULL);
	ready();
	struct netmap_ring *ring = NETMAP_RXRING(port.nifp, port.rx);
	for (;;) {
		wait_for(&port, "poll", 0);
		for (; !nm_ring_empty(ring); ring->head = ring->cur = nm_ring_next(ring, ring->head)) {
			unsigned char *frame = (unsigned char *)NETMAP_BUF(ring, ring->slot[ring->head].buf_idx);
			if (frame[12] == 0x88 && frame[13] == 0xb5)
				printf("%02x to %02x\n", frame[11], frame[5]);
			else if (frame[0] == 0xff)
				printf("%02x%02x\n", frame[12], frame[13]);
		}
		fflush(stdout);
	}
}

static void say(const char *name, unsigned to, unsigned from, unsigned flags)
{
	static unsigned char frame[60] = {[6] = 2, [12] = 0x88, [13] = 0xb5};
	struct port port = {0};
	open_port(&port, name, NULL);
	memset(frame, to == 0xff ? 0xff : 0, 6);
	frame[0] |= 2;
	frame[5] = to;
	frame[11] = from;
	struct netmap_ring *ring = NETMAP_TXRING(port.nifp, port.tx);
	struct netmap_slot *slot = &ring->slot[ring->head];
	if (flags & NS_INDIRECT)
		slot->ptr = (uintptr_t)frame;
	else
		memcpy(NETMAP_BUF(ring, slot->buf_idx), frame, sizeof frame);
	slot->len = sizeof frame;
	slot->flags = flags;
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
	do
		if (ioctl(port.fd, NIOCTXSYNC, NULL) < 0)
			fail("sync");
	while (nm_tx_pending(ring));
	ready();
	pause();
}

int main(int argc, char **argv)
{
	if (argc == 6 && !strcmp(argv[1], "send"))
		send_frames(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), argv[5]);
	else if (argc == 5 && !strcmp(argv[1], "receive"))
		receive_frames(argv[2], strtoull(argv[3], NULL, 10), argv[4]);
	else if (argc == 6 && !strcmp(argv[1], "bridge"))
		bridge(argv[2], argv[3], strtoull(argv[4], NULL, 10), argv[5]);
	else if (argc == 5 && !strcmp(argv[1], "indirect"))
		send_indirectly(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
	else if (argc == 3 && !strcmp(argv[1], "pass"))
		pass(argv[2]);
	else if (argc == 4 && !strcmp(argv[1], "hold"))
		hold(argv[2], strtoull(argv[3], NULL, 10));
	else if (argc == 5 && !strcmp(argv[1], "keep"))
		keep(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
	else if (argc == 3 && !strcmp(argv[1], "hear"))
		hear(argv[2]);
	else if (argc == 6 && !strcmp(argv[1], "say"))
		say(argv[2], strtoul(argv[3], NULL, 16), strtoul(argv[4], NULL, 16), strtoul(argv[5], NULL, 16));
	else if (argc == 3 && !strcmp(argv[1], "open")) {
		struct port port = {0};
		open_port(&port, argv[2], NULL);
		ready();
		pause();
	} else if (argc == 3 && !strcmp(argv[1], "fill"))
		send_frames(argv[2], UINT64_MAX, 60, "busy");
	else
		return 2;
	return 0;
}
