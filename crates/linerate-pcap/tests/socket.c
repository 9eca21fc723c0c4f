/* A program that uses only documented calls of packet sockets (packet(7)). Usage: socket WHAT INTERFACE [NUMBER...]
 * With liblinerate_pcap.so preloaded, the interface may be a port. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *interface;
static unsigned index_of;

static void die(const char *what) {
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

/* Prints a call and its result. A call that succeeds must leave errno(3) unchanged. Only the index may differ between an
 * interface and a port. */
#define SHOW(call) do { errno = 0; long answer = (long)(call); int error = errno; printf("%s: %ld", #call, answer); \
	printf(answer < 0 || error ? " %s\n" : "\n", strerror(error)); } while (0)

static void ready(void) {
	printf("ready\n");
	fflush(stdout);
}

static int opened(int kind, int protocol) {
	int fd = socket(AF_PACKET, kind, 0);
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = index_of };
	if (fd < 0)
		die("socket");
	if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
		die("bind");
	return fd;
}

static void show_address(const char *what, const struct sockaddr_ll *address, socklen_t len) {
	printf("%s: %u bytes, family %u, protocol %04x, %s, type %u, kind %u, %u:", what, len, address->sll_family,
		ntohs(address->sll_protocol), address->sll_ifindex == (int)index_of ? "the interface" : "another interface",
		address->sll_hatype, address->sll_pkttype, address->sll_halen);
	for (int n = 0; n < 6; n++)
		printf(" %02x", address->sll_addr[n]);
	printf("\n");
}

static void show_name(int fd) {
	struct sockaddr_ll address;
	socklen_t len = sizeof address;
	memset(&address, 0, sizeof address);
	SHOW(getsockname(fd, (struct sockaddr *)&address, &len));
	show_address("own", &address, len);
}

/* Passes invalid addresses, and makes calls that packet sockets do not support. */
static void memory(void) {
	unsigned char frame[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	int fd = opened(SOCK_RAW, ETH_P_ALL), cooked = opened(SOCK_DGRAM, ETH_P_ALL), value = 1;
	volatile socklen_t too_long = 1000;
	socklen_t len = sizeof value;
	struct sockaddr_ll own = { .sll_family = AF_PACKET, .sll_ifindex = index_of, .sll_halen = 6, .sll_protocol = htons(0x88b5) };
	struct sockaddr *to = (struct sockaddr *)&own;
	static struct iovec many[1025], part;
	part = (struct iovec){ frame, sizeof frame };
	many[0] = part;
	void *volatile bad[] = { NULL, (void *)8 };
	for (int n = 0; n < 2; n++) {
		void *volatile none = bad[n];
		SHOW(sendto(fd, none, 60, 0, NULL, 0));
		SHOW(sendto(fd, none, 60, 0, to, sizeof own));
		SHOW(sendto(cooked, none, 46, 0, to, sizeof own));
		SHOW(send(fd, none, 60, 0));
		SHOW(write(fd, none, 1600));
		SHOW(writev(fd, none, 1));
		SHOW(sendmsg(fd, none, 0));
		SHOW(sendmsg(fd, &(struct msghdr){ .msg_iov = none, .msg_iovlen = 1 }, 0));
		SHOW(sendmmsg(fd, none, 1, 0));
		SHOW(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, none, sizeof(struct packet_mreq)));
		SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, none, sizeof(struct sock_fprog)));
		SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &(struct sock_fprog){ 1, none }, sizeof(struct sock_fprog)));
		SHOW(setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, none, sizeof value));
		SHOW(getsockopt(fd, SOL_SOCKET, SO_TYPE, none, &len));
		SHOW(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, none));
		SHOW(getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, none, &len));
		SHOW(getsockname(fd, none, &len));
		SHOW(getsockname(fd, to, none));
		SHOW(bind(fd, none, sizeof own));
		SHOW(ioctl(fd, FIONREAD, none));
		SHOW(recvmsg(fd, none, MSG_DONTWAIT));
		SHOW(recvmsg(fd, &(struct msghdr){ .msg_iov = none, .msg_iovlen = 1 }, MSG_DONTWAIT));
		SHOW(recvmsg(cooked, &(struct msghdr){ .msg_iov = none, .msg_iovlen = 1 }, MSG_DONTWAIT));
		SHOW(recvmmsg(fd, none, 1, MSG_DONTWAIT, NULL));
		SHOW(readv(cooked, none, 1));
	}
	SHOW(sendto(fd, frame, 60, 0, bad[1], sizeof own));
	SHOW(sendto(fd, frame, 60, 0, to, too_long));
	/* Too many parts: the error precedes reading any of them. */
	SHOW(sendmsg(fd, &(struct msghdr){ .msg_iov = bad[1], .msg_iovlen = 1025 }, 0));
	SHOW(sendmsg(fd, &(struct msghdr){ .msg_iov = many, .msg_iovlen = 1024 }, 0));
	SHOW(recvmsg(fd, &(struct msghdr){ .msg_iov = bad[1], .msg_iovlen = 1025 }, MSG_DONTWAIT));
	SHOW(writev(fd, many, 1025));
	SHOW(writev(fd, many, 1024));
	SHOW(readv(cooked, many, 1025));
	/* The error queue is empty. */
	SHOW(recv(fd, frame, 60, MSG_ERRQUEUE));
	SHOW(recvmsg(fd, &(struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 }, MSG_ERRQUEUE));
	SHOW(recvfrom(cooked, frame, 60, MSG_ERRQUEUE, NULL, NULL));
	SHOW(shutdown(fd, SHUT_RDWR));
	SHOW(connect(fd, to, sizeof own));
	SHOW(listen(fd, 1));
	SHOW(accept(fd, NULL, NULL));
	SHOW(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
	len = sizeof own;
	SHOW(getpeername(fd, to, &len));
	SHOW(send(fd, frame, 60, 0));
	/* A locked filter cannot be changed. */
	struct sock_filter code[] = { { BPF_RET | BPF_K, 0, 0, 0 } };
	struct sock_fprog filter = { 1, code };
	len = sizeof value;
	SHOW(setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &(int){ 0 }, len));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &(int){ 1 }, len));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &(int){ 1 }, len));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &(int){ 0 }, len));
	SHOW(getsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &value, &len));
	printf("%d\n", value);
	SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &value, len));
	SHOW(close(fd) + close(cooked));
}

/* Prints the results of calls that need no peer. */
static void calls(void) {
	struct ifreq request;
	struct ifaddrs *all, *one;
	char name[IF_NAMESIZE];
	int fd = socket(AF_INET, SOCK_DGRAM, 0), value, listed = 0;
	socklen_t len = sizeof value;
	memset(&request, 0, sizeof request);
	strcpy(request.ifr_name, interface);
	SHOW(ioctl(fd, SIOCGIFINDEX, &request));
	printf("same index: %d\n", request.ifr_ifindex == (int)index_of);
	memset(request.ifr_name, 0, sizeof request.ifr_name);
	SHOW(ioctl(fd, SIOCGIFNAME, &request));
	printf("%s\n", request.ifr_name);
	SHOW(ioctl(fd, SIOCGIFHWADDR, &request));
	printf("%u:", request.ifr_hwaddr.sa_family);
	for (int n = 0; n < 6; n++)
		printf(" %02x", (unsigned char)request.ifr_hwaddr.sa_data[n]);
	SHOW(ioctl(fd, SIOCGIFFLAGS, &request));
	printf("%x\n", request.ifr_flags & ~IFF_PROMISC);
	SHOW(ioctl(fd, SIOCGIFMTU, &request));
	printf("%d\n", request.ifr_mtu);
	SHOW(ioctl(fd, SIOCGIFADDR, &request));
	strcpy(request.ifr_name, "nosuch0");
	SHOW(ioctl(fd, SIOCGIFINDEX, &request));
	request.ifr_ifindex = 0x7fffff00;
	SHOW(ioctl(fd, SIOCGIFNAME, &request));
	SHOW(ioctl(0, SIOCGIFNAME, &request));
	close(fd);
	SHOW(if_nametoindex("nosuch0"));
	SHOW(if_indextoname(0x7fffff00, name) == NULL);
	SHOW(strcmp(if_indextoname(index_of, name), interface));
	SHOW(getifaddrs(&all));
	for (one = all; one; one = one->ifa_next)
		if (!strcmp(one->ifa_name, interface) && one->ifa_addr && one->ifa_addr->sa_family == AF_PACKET) {
			listed++;
			printf("%d\n", ((struct sockaddr_ll *)one->ifa_addr)->sll_ifindex == (int)index_of && one->ifa_data);
		}
	freeifaddrs(all);
	SHOW(listed);

	unsigned char frame[1600] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = 0x7fffff00 };
	fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ARP));
	show_name(fd);
	SHOW(send(fd, frame, 60, 0));
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	SHOW(bind(fd, (struct sockaddr *)&address, 4));
	address.sll_ifindex = index_of;
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	show_name(fd);
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	address.sll_protocol = 0;
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	show_name(fd);
	SHOW(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len));
	printf("%d\n", value);
	SHOW(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len));
	printf("%d\n", value);
	SHOW(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &len));
	printf("%04x\n", value);
	SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
	printf("%d\n", value);
	SHOW(setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &value, len));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){ 50000 }, len));
	SHOW(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &len));
	printf("%d\n", value);
	SHOW(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP,
		&(struct packet_mreq){ .mr_ifindex = index_of, .mr_type = PACKET_MR_PROMISC }, sizeof(struct packet_mreq)));
	SHOW(setsockopt(fd, SOL_PACKET, PACKET_DROP_MEMBERSHIP,
		&(struct packet_mreq){ .mr_ifindex = index_of, .mr_type = PACKET_MR_PROMISC }, sizeof(struct packet_mreq)));
	SHOW(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP,
		&(struct packet_mreq){ .mr_ifindex = 0x7fffff00, .mr_type = PACKET_MR_PROMISC }, sizeof(struct packet_mreq)));
	SHOW(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &value, 2));
	SHOW(setsockopt(fd, SOL_PACKET, 1000, &value, len));
	SHOW(setsockopt(fd, IPPROTO_TCP, 1, &value, len));
	SHOW(setsockopt(fd, 9999, 1, &value, len));
	SHOW(getsockopt(fd, IPPROTO_TCP, 1, &value, &len));
	SHOW(getsockopt(fd, 9999, 1, &value, &len));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &value, len));
	struct sock_filter jump[] = { { BPF_JMP | BPF_JA, 0, 0, 1000 } };
	SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &(struct sock_fprog){ 1, jump }, sizeof(struct sock_fprog)));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &(struct sock_fprog){ 0, jump }, sizeof(struct sock_fprog)));
	SHOW(fcntl(fd, F_GETFL) & O_NONBLOCK);
	SHOW(fcntl(fd, F_GETFD));
	SHOW(recv(fd, frame, sizeof frame, MSG_DONTWAIT));
	SHOW(poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 0));
	struct pollfd event = { fd, POLLOUT, 0 };
	SHOW(poll(&event, 1, 0));
	SHOW(event.revents & POLLOUT);
	SHOW(send(fd, frame, 60, 0));
	SHOW(write(fd, frame, 1514));
	SHOW(send(fd, frame, 1515, 0));
	SHOW(write(fd, frame, 1600));
	SHOW(writev(fd, (struct iovec[]){ { frame, 14 }, { frame + 14, 1501 } }, 2));
	SHOW(writev(fd, (struct iovec[]){ { frame, 14 }, { frame + 14, 46 } }, 2));
	frame[12] = 0x81, frame[13] = 0;
	SHOW(send(fd, frame, 1518, 0));
	SHOW(send(fd, frame, 1519, 0));
	address.sll_ifindex = 0x7fffff00;
	SHOW(sendto(fd, frame, 60, 0, (struct sockaddr *)&address, sizeof address));
	SHOW(sendto(fd, frame, 60, 0, (struct sockaddr *)&address, 4));
	address.sll_ifindex = index_of;
	SHOW(sendto(fd, frame, 60, 0, (struct sockaddr *)&address, sizeof address));
	SHOW(close(fd));
	SHOW(close(fd));
	memory();
	fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	address.sll_protocol = htons(0x88b5);
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	SHOW(fcntl(fd, F_GETFL) & O_NONBLOCK);
	SHOW(fcntl(fd, F_GETFD));
	SHOW(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len));
	printf("%d\n", value);
	SHOW(recv(fd, frame, sizeof frame, 0));
	SHOW(send(fd, frame, 60, 0));
	address.sll_halen = 6;
	SHOW(sendto(fd, frame, 46, 0, (struct sockaddr *)&address, sizeof address));
	SHOW(sendto(fd, frame, 1501, 0, (struct sockaddr *)&address, sizeof address));
	SHOW(close(fd));
}

/* Prints frames, received in every possible way, until a frame's 15th byte is 0xff. */
static void receive(int kind, int protocol, const char *filter) {
	int fd = opened(kind, protocol), on = 1;
	unsigned char bytes[2048], control[256];
	if (*filter) {
		/* Accept frames whose 15th byte, the first after the header, is odd. */
		unsigned at = kind == SOCK_RAW ? 14 : 0;
		struct sock_filter code[] = { { BPF_LD | BPF_B | BPF_ABS, 0, 0, at }, { BPF_JMP | BPF_JSET | BPF_K, 0, 1, 1 },
			{ BPF_RET | BPF_K, 0, 0, atoi(filter) }, { BPF_RET | BPF_K, 0, 0, 0 } };
		SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &(struct sock_fprog){ 4, code }, sizeof(struct sock_fprog)));
	}
	SHOW(setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &on, sizeof on));
	ready();
	for (int n = 0;; n++) {
		struct sockaddr_ll from;
		socklen_t from_len = sizeof from;
		ssize_t len;
		memset(&from, 0, sizeof from);
		memset(bytes, 0, sizeof bytes);
		struct iovec parts[2] = { { bytes, 10 }, { bytes + 10, 2000 } };
		struct msghdr message = { &from, sizeof from, parts, 2, control, sizeof control, 0 };
		struct mmsghdr several = { message, 0 };
		struct pollfd event = { fd, POLLIN, 0 };
		if (poll(&event, 1, 20000) != 1)
			die("poll");
		int is_short = n % 11 == 9;
		switch (n % 11) {
		case 0: len = recv(fd, bytes, sizeof bytes, 0); break;
		case 1: len = read(fd, bytes, sizeof bytes); break;
		case 2:
			len = recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &from_len);
			show_address("from", &from, from_len);
			break;
		case 8: /* There is no buffer for the frame. */
			message.msg_iovlen = 0;
			/* fall through */
		case 9: /* The frame is longer than the buffer. */
			if (is_short)
				message.msg_iovlen = 1, parts[0].iov_len = 20;
			/* fall through */
		case 3:
			len = recvmsg(fd, &message, 0);
			show_address("from", &from, message.msg_namelen);
			printf("flags %x", message.msg_flags);
			for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
				if (c->cmsg_level == SOL_PACKET && c->cmsg_type == PACKET_AUXDATA) {
					struct tpacket_auxdata *aux = (void *)CMSG_DATA(c);
					/* A port's socket does not know the original length of a frame that a filter has truncated. */
					printf(" auxiliary %x %u %u %u", aux->tp_status & 1, *filter ? 0 : aux->tp_len, aux->tp_snaplen, aux->tp_net);
				}
			printf("\n");
			break;
		case 4:
			len = recvmmsg(fd, &several, 1, 0, NULL);
			len = len == 1 ? several.msg_len : len;
			show_address("from", &from, several.msg_hdr.msg_namelen);
			break;
		case 5: {
			int waiting = -1;
			SHOW(ioctl(fd, FIONREAD, &waiting));
			len = readv(fd, parts, 2);
			printf("%d, ", waiting);
			break;
		}
		case 6: /* First only the frame's beginning, then all of it. */
			from_len = 12;
			printf("peek %zd, ", recvfrom(fd, bytes, 5, MSG_PEEK | MSG_TRUNC, (struct sockaddr *)&from, &from_len));
			printf("%zd, from %u bytes, protocol %04x, ", recv(fd, bytes, 3, MSG_PEEK), from_len, ntohs(from.sll_protocol));
			len = recv(fd, bytes, sizeof bytes, 0);
			break;
		case 7: len = recv(fd, bytes, 20, MSG_TRUNC); break;
		default: len = recv(fd, bytes, 16, 0); break;
		}
		if (len < 0)
			die("recv");
		printf("%zd bytes:", len);
		for (ssize_t at = 0; at < len && at < 64; at++)
			printf(" %02x", bytes[at]);
		printf("\n");
		if (bytes[kind == SOCK_RAW ? 14 : 0] == 0xff)
			break;
	}
	struct tpacket_stats stats;
	socklen_t len = sizeof stats;
	SHOW(getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &len));
	printf("%u packets, %u dropped\n", stats.tp_packets, stats.tp_drops);
	SHOW(getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &len));
	printf("%u packets, %u dropped\n", stats.tp_packets, stats.tp_drops);
}

/* Sends numbered frames in every possible way, and exits immediately. */
static void send_frames(long count) {
	unsigned char frame[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_ifindex = index_of, .sll_halen = 6, .sll_protocol = htons(0x88b5),
		.sll_addr = { 2, 0, 0, 0, 0, 1 } };
	int fd = opened(SOCK_RAW, 0), cooked = socket(AF_PACKET, SOCK_DGRAM, 0), unbound = socket(AF_PACKET, SOCK_RAW, 0);
	for (long n = 0; n < count; n++) {
		struct iovec part = { frame, 60 };
		struct mmsghdr message = { { NULL, 0, &part, 1, NULL, 0, 0 }, 0 };
		ssize_t sent;
		frame[14] = n >> 8, frame[15] = n;
		switch (n % 7) {
		case 0: sent = send(fd, frame, 60, 0); break;
		case 1: sent = write(fd, frame, 60); break;
		case 2: sent = sendto(fd, frame, 60, 0, (struct sockaddr *)&to, sizeof to); break;
		case 3: sent = sendmsg(fd, &message.msg_hdr, 0); break;
		case 4: sent = sendmmsg(fd, &message, 1, 0) == 1 ? message.msg_len : 0; break;
		case 5: sent = sendto(unbound, frame, 60, 0, (struct sockaddr *)&to, sizeof to); break;
		default: sent = 14 + sendto(cooked, frame + 14, 46, 0, (struct sockaddr *)&to, sizeof to); break;
		}
		if (sent != 60)
			die("send");
	}
}

/* Receives frames after a character on stdin, until all are accounted for; prints how many were received and lost. */
static void count_frames(long sent) {
	int fd = opened(SOCK_RAW, ETH_P_ALL);
	unsigned char bytes[2048];
	long count = 0, packets = 0, dropped = 0;
	ready();
	getchar();
	/* Until all frames are accounted for, for at most a minute. */
	for (int n = 0; n < 600 && count + dropped < sent; n++) {
		poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 100);
		while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
			count++;
		/* Reading the statistics resets them. */
		struct tpacket_stats stats;
		socklen_t len = sizeof stats;
		if (getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &len) < 0)
			die("getsockopt");
		packets += stats.tp_packets, dropped += stats.tp_drops;
	}
	printf("%ld frames, %ld packets, %ld dropped\n", count, packets, dropped);
}

/* Waits for a frame on a port that goes away. */
static void wait_for_the_end(void) {
	int fd = opened(SOCK_RAW, ETH_P_ALL), cooked = opened(SOCK_DGRAM, ETH_P_ALL);
	unsigned char bytes[60] = { 0 };
	ready();
	SHOW(recv(fd, bytes, sizeof bytes, 0));
	SHOW(read(cooked, bytes, sizeof bytes));
	SHOW(write(fd, bytes, sizeof bytes));
	SHOW(poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, -1));
	SHOW(close(fd));
}

static long entries(const char *folder) {
	long count = 0;
	DIR *open = opendir(folder);
	if (!open)
		die(folder);
	while (readdir(open))
		count++;
	closedir(open);
	return count;
}

static void *close_soon(void *fd) {
	sched_yield();
	close(*(int *)fd);
	return NULL;
}

static void *wait_long(void *fd) {
	unsigned char bytes[64];
	recvfrom(*(int *)fd, bytes, sizeof bytes, 0, (struct sockaddr *)&(struct sockaddr_ll){ 0 }, &(socklen_t){ sizeof(struct sockaddr_ll) });
	return NULL;
}

/* Children, duplicates, threads, and a full descriptor table. */
static void hostile(void) {
	unsigned char frame[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	int fd = opened(SOCK_RAW, ETH_P_ALL), status, other;
	pthread_t thread;

	/* A child sends through its parent's socket, and opens one of its own. */
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		int own = socket(AF_PACKET, SOCK_RAW, 0);
		alarm(20);
		frame[14] = 1;
		_exit(own < 0 || if_nametoindex(interface) != index_of || send(fd, frame, 60, 0) != 60 || close(own) || close(fd));
	}
	SHOW(waitpid(child, &status, 0) == child);
	SHOW(status);
	/* A child sends after its parent has closed the socket, and ends by exit(3). */
	other = dup(fd);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		alarm(20);
		frame[14] = 2;
		if (send(other, frame, 60, 0) != 60)
			_exit(1);
		exit(0);
	}
	close(other);
	SHOW(waitpid(child, &status, 0) == child);
	SHOW(status);

	/* Duplicates are the same socket. */
	other = fcntl(fd, F_DUPFD, 100);
	frame[14] = 3;
	SHOW(send(other, frame, 60, 0));
	SHOW(close(fd));
	frame[14] = 4;
	SHOW(write(other, frame, 60));
	SHOW(dup2(other, fd) == fd);
	SHOW(close(other));
	frame[14] = 5;
	SHOW(sendto(fd, frame, 60, 0, NULL, 0));
	/* Another file gets the descriptor's number, without close(2). */
	other = open("/dev/null", O_WRONLY);
	SHOW(dup2(other, fd) == fd);
	SHOW(write(fd, frame, 5));
	close(fd);
	fd = opened(SOCK_DGRAM, ETH_P_ALL);
	SHOW(syscall(SYS_dup2, other, fd) == fd);
	SHOW(write(fd, frame, 30));
	SHOW(recv(fd, frame + 30, 30, 0));
	close(fd);
	fd = opened(SOCK_RAW, ETH_P_ALL);
	SHOW(syscall(SYS_dup2, other, fd) == fd);
	SHOW(write(fd, frame, 30));
	SHOW(read(fd, frame + 30, 30));
	close(fd), close(other);

	/* A child of vfork(2) closes only its own descriptor, although it shares its parent's memory. */
	fd = opened(SOCK_RAW, ETH_P_ALL);
	if ((child = vfork()) == 0) {
		close(fd);
		_exit(0);
	}
	waitpid(child, &status, 0);
	SHOW(status);
	SHOW(send(fd, frame, 1, 0));
	close(fd);

	/* A duplicate is made before the socket is bound. */
	fd = socket(AF_PACKET, SOCK_RAW, 0), other = dup(fd);
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index_of };
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	frame[14] = 6;
	SHOW(send(other, frame, 60, 0));
	close(other);

	/* A waiting thread is cancelled, and one thread closes the socket while another polls it. */
	pthread_create(&thread, NULL, wait_long, &fd);
	sched_yield();
	SHOW(pthread_cancel(thread));
	SHOW(pthread_join(thread, NULL));
	struct pollfd event = { fd, POLLIN, 0 };
	pthread_create(&thread, NULL, close_soon, &fd);
	SHOW(poll(&event, 1, 50) <= 1);
	pthread_join(thread, NULL);
	SHOW(send(fd, frame, 60, 0));

	/* Rings, before and after a socket is bound. */
	struct tpacket_req ring = { 4096, 1, 2048, 2 };
	fd = socket(AF_PACKET, SOCK_RAW, 0);
	SHOW(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring));
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	SHOW(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &(struct tpacket_req){ 0, 0, 0, 0 }, sizeof ring));
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	SHOW(setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &ring, sizeof ring));
	close(fd);
	/* A filter that loads the kernel's metadata of a frame. */
	struct sock_filter code[] = { { BPF_LD | BPF_W | BPF_ABS, 0, 0, SKF_AD_OFF + SKF_AD_PROTOCOL }, { BPF_RET | BPF_A, 0, 0, 0 } };
	struct sock_fprog filter = { 2, code };
	fd = socket(AF_PACKET, SOCK_RAW, 0);
	SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &filter, sizeof filter));
	SHOW(bind(fd, (struct sockaddr *)&address, sizeof address));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
	close(fd);

	/* Use up all descriptors. */
	struct rlimit limit = { 64, 64 }, before;
	getrlimit(RLIMIT_NOFILE, &before);
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){ limit.rlim_cur, before.rlim_max });
	int many[64], count = 0, errors = 0;
	while ((many[count] = socket(AF_PACKET, SOCK_RAW, 0)) >= 0)
		count++;
	int why = errno;
	SHOW(why == EMFILE);
	for (int n = 0; n < count; n++) {
		if (bind(many[n], (struct sockaddr *)&address, sizeof address) < 0)
			errors += errno == EMFILE;
		/* Each closed socket frees one descriptor; a pair needs two. */
		close(many[n]);
	}
	printf("%s\n", errors > 0 ? "errors of bind" : "bound");
	setrlimit(RLIMIT_NOFILE, &before);
	fd = opened(SOCK_RAW, ETH_P_ALL);
	frame[14] = 0xff;
	SHOW(send(fd, frame, 60, 0));
	SHOW(close(fd));

	/* A child waits for frames while its parent ends. */
	int ends[2];
	char is_down = 0;
	SHOW(pipe(ends));
	fflush(stdout);
	if ((child = fork()) == 0) {
		fd = opened(SOCK_RAW, ETH_P_ALL);
		if (fork() == 0) {
			alarm(20);
			is_down = recv(fd, frame, 60, 0) < 0 && errno == ENETDOWN;
			_exit(write(ends[1], &is_down, 1) != 1);
		}
		_exit(0);
	}
	close(ends[1]);
	waitpid(child, &status, 0);
	SHOW(read(ends[0], &is_down, 1));
	SHOW(is_down);
}

/* Opens, uses and closes sockets in random order. */
static void churn(long rounds, unsigned seed) {
	static unsigned char frame[1514] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	int held[4] = { -1, -1, -1, -1 };
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index_of };
	close(opened(SOCK_RAW, ETH_P_ALL));
	long descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
	srandom(seed);
	for (long n = 0; n < rounds; n++) {
		int *at = &held[random() % 4];
		struct sockaddr_ll from;
		socklen_t len = sizeof from;
		if (*at < 0) {
			if ((*at = socket(AF_PACKET, random() % 2 ? SOCK_RAW : SOCK_DGRAM, htons(ETH_P_ALL))) < 0)
				die("socket");
			continue;
		}
		switch (random() % 8) {
		case 0: case 1: bind(*at, (struct sockaddr *)&address, sizeof address); break;
		case 2: send(*at, frame, 14 + random() % 1600 % 1500, MSG_DONTWAIT); break;
		case 3: sendto(*at, frame, 60, MSG_DONTWAIT, (struct sockaddr *)&address, sizeof address); break;
		case 4: recvfrom(*at, frame + 14, 1500, MSG_DONTWAIT, (struct sockaddr *)&from, &len); break;
		case 5: recv(*at, frame + 14, 1500, MSG_DONTWAIT); break;
		case 6: {
			int other = dup(*at);
			close(*at);
			*at = other;
			break;
		}
		default:
			close(*at);
			*at = -1;
		}
	}
	for (int n = 0; n < 4; n++)
		if (held[n] >= 0)
			close(held[n]);
	/* The kernel lists a joined thread for a moment longer. */
	for (long n = 0; n < 1000000 && entries("/proc/self/task") != threads; n++)
		sched_yield();
	printf("%ld descriptors and %ld threads more\n", entries("/proc/self/fd") - descriptors,
		entries("/proc/self/task") - threads);
}

/* Requests a dump, and prints for each link its name, type, flags, MTU and the first byte of the address. */
static void dump(const char *how, int kind) {
	struct { struct nlmsghdr header; struct ifinfomsg about; } request = {
		{ sizeof request, kind, NLM_F_REQUEST | NLM_F_DUMP, 7, 0 }, { .ifi_family = AF_UNSPEC } };
	static char bytes[1 << 16];
	struct sockaddr_nl from, kernel = { .nl_family = AF_NETLINK };
	socklen_t len = sizeof from;
	struct iovec part = { bytes, sizeof bytes }, out = { &request, sizeof request };
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1 };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), is_message = !strcmp(how, "messages");
	/* A duplicate remains the same socket after the original descriptor is closed. */
	if (strcmp(how, "reads")) {
		int first = fd;
		fd = is_message ? dup(first) : fcntl(first, F_DUPFD_CLOEXEC, 50);
		close(first);
	}
	struct pollfd event = { fd, POLLIN, 0 };
	if (is_message)
		sendmsg(fd, &(struct msghdr){ .msg_name = &kernel, .msg_namelen = sizeof kernel, .msg_iov = &out, .msg_iovlen = 1 }, 0);
	else if (!strcmp(how, "addresses"))
		sendto(fd, &request, sizeof request, 0, (struct sockaddr *)&kernel, sizeof kernel);
	else
		send(fd, &request, sizeof request, 0);
	getsockname(fd, (struct sockaddr *)&kernel, &len);
	printf("%s by %s:", kind == RTM_GETLINK ? "links" : "addresses", how);
	for (;;) {
		ssize_t got;
		if (poll(&event, 1, 20000) != 1)
			die("poll");
		if (is_message) {
			ssize_t whole = recvmsg(fd, &message, MSG_PEEK | MSG_TRUNC);
			got = recvmsg(fd, &message, 0);
			if (got != whole || message.msg_flags != 0 || from.nl_family != AF_NETLINK || from.nl_pid != 0)
				die("recvmsg");
		} else if (!strcmp(how, "addresses")) {
			len = sizeof from;
			got = recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &len);
			if (len != sizeof from || from.nl_family != AF_NETLINK || from.nl_pid != 0)
				die("recvfrom");
		} else {
			got = read(fd, bytes, sizeof bytes);
		}
		struct nlmsghdr *at = (struct nlmsghdr *)bytes;
		for (; NLMSG_OK(at, got); at = NLMSG_NEXT(at, got)) {
			if (at->nlmsg_seq != 7 || at->nlmsg_pid != kernel.nl_pid || !(at->nlmsg_flags & NLM_F_MULTI))
				die("a header");
			if (at->nlmsg_type == NLMSG_DONE) {
				printf("\n");
				close(fd);
				return;
			}
			if (at->nlmsg_type != RTM_NEWLINK)
				continue;
			struct ifinfomsg *about = NLMSG_DATA(at);
			int left = IFLA_PAYLOAD(at);
			const char *name = "";
			unsigned mtu = 0, first = 0;
			for (struct rtattr *one = IFLA_RTA(about); RTA_OK(one, left); one = RTA_NEXT(one, left)) {
				if (one->rta_type == IFLA_IFNAME)
					name = RTA_DATA(one);
				if (one->rta_type == IFLA_MTU)
					mtu = *(unsigned *)RTA_DATA(one);
				if (one->rta_type == IFLA_ADDRESS)
					first = *(unsigned char *)RTA_DATA(one);
			}
			if (if_nametoindex(name) != (unsigned)about->ifi_index)
				die("an index");
			printf(" %s %u %x %u %02x", name, about->ifi_type, about->ifi_flags, mtu, first);
		}
	}
}

static void links(void) {
	static const char *const hows[] = { "reads", "addresses", "messages" };
	for (int n = 0; n < 6; n++)
		dump(hows[n % 3], n < 3 ? RTM_GETLINK : RTM_GETADDR);
}

typedef struct pcap pcap_t;
pcap_t *pcap_open_live(const char *, int, int, int, char *);
int pcap_inject(pcap_t *, const void *, size_t), pcap_next_ex(pcap_t *, void **, const unsigned char **), pcap_get_selectable_fd(pcap_t *), pcap_fileno(pcap_t *);
void pcap_close(pcap_t *);

/* Makes interface requests through the descriptors of a libpcap handle, which are sockets on Linux. */
static void ask_by_descriptor(void) {
	char error[256];
	pcap_t *pcap = pcap_open_live(interface, 65535, 1, 10, error);
	if (!pcap)
		die(error);
	int fds[] = { pcap_get_selectable_fd(pcap), pcap_fileno(pcap), dup(pcap_fileno(pcap)) };
	const char *names[] = { interface, "lo", "nosuch0" };
	for (int n = 0; n < 9; n++) {
		int fd = fds[n / 3];
		struct ifreq request = { 0 };
		strncpy(request.ifr_name, names[n % 3], IFNAMSIZ - 1);
		SHOW(ioctl(fd, SIOCGIFINDEX, &request));
		SHOW(n % 3 == 2 || request.ifr_ifindex == (int)if_nametoindex(names[n % 3]));
		SHOW(ioctl(fd, SIOCGIFMTU, &request));
		SHOW(request.ifr_mtu > 1000);
		SHOW(ioctl(fd, SIOCGIFFLAGS, &request));
		SHOW((request.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING));
		SHOW(ioctl(fd, SIOCGIFHWADDR, &request));
		SHOW(request.ifr_hwaddr.sa_family);
		SHOW(ioctl(fd, SIOCGIFADDR, &request));
	}
	char many[4096];
	struct ifconf list = { .ifc_len = sizeof many, .ifc_buf = many };
	SHOW(ioctl(fds[0], SIOCGIFCONF, &list));
	int is_on = 1;
	SHOW(ioctl(fds[0], FIONBIO, &is_on));
	SHOW(close(fds[2]));
	pcap_close(pcap);
	SHOW(ioctl(fds[0], SIOCGIFCONF, &list));
}

/* Opens a libpcap handle, sockets that query the interface's properties, then a packet socket on the same interface. */
static void share(void) {
	char error[256];
	unsigned char frame[1514] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	pcap_t *pcap = pcap_open_live(interface, 65535, 1, 10, error);
	int kinds[][2] = { { AF_PACKET, SOCK_RAW }, { AF_INET, SOCK_DGRAM }, { AF_UNIX, SOCK_DGRAM } };
	if (!pcap)
		die(error);
	for (int n = 0; n < 3; n++) {
		struct ifreq request = { 0 };
		int fd = socket(kinds[n][0], kinds[n][1], 0);
		strcpy(request.ifr_name, interface);
		if (ioctl(fd, SIOCGIFHWADDR, &request) < 0 || request.ifr_hwaddr.sa_data[0] != 2)
			die("SIOCGIFHWADDR");
		if (ioctl(fd, SIOCGIFMTU, &request) < 0 || request.ifr_mtu < 1500 || ioctl(fd, SIOCGIFFLAGS, &request) < 0)
			die("SIOCGIFMTU");
		close(fd);
	}
	int fd = opened(SOCK_RAW, ETH_P_ALL);
	long of_socket = 0, of_handle = 0;
	alarm(60);
	ready();
	while (of_socket < 100 && recv(fd, frame, sizeof frame, 0) > 0)
		of_socket++;
	void *header;
	const unsigned char *bytes;
	while (of_handle < 100 && pcap_next_ex(pcap, &header, &bytes) == 1)
		of_handle++;
	if (send(fd, frame, 60, 0) != 60 || pcap_inject(pcap, frame, 60) != 60)
		die("send");
	printf("%ld frames of the socket, %ld of the handle\n", of_socket, of_handle);
	close(fd);
	pcap_close(pcap);
}

enum { RECV, RECVFROM, RECVMSG, RECVMMSG, READ, READV, POLL, SELECT, EPOLL, SEND, SENDTO, SENDMSG, SENDMMSG, WRITE, WRITEV, WAYS };
static const char *const ways[WAYS] = { "recv", "recvfrom", "recvmsg", "recvmmsg", "read", "readv", "poll", "select", "epoll_wait",
	"send", "sendto", "sendmsg", "sendmmsg", "write", "writev" };
struct victim { int way, type, fd, is_cooked; volatile int begun; };
static volatile long cleaned;

static void clean(void *epoll) {
	close(*(int *)epoll);
	cleaned++;
}

/* Makes one kind of call until the thread is cancelled. */
static void *call_until_cancelled(void *argument) {
	struct victim *victim = argument;
	unsigned char bytes[2000], frame[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	struct sockaddr_ll from, to = { .sll_family = AF_PACKET, .sll_ifindex = index_of, .sll_halen = 6, .sll_protocol = htons(0x88b5) };
	socklen_t len = sizeof from;
	int fd = victim->fd, epoll = epoll_create1(0), is_cooked = victim->is_cooked;
	struct iovec part = { bytes, sizeof bytes }, out = { frame, sizeof frame };
	struct msghdr in = { .msg_iov = &part, .msg_iovlen = 1 };
	struct msghdr sent = { .msg_iov = &out, .msg_iovlen = 1, .msg_name = is_cooked ? &to : NULL, .msg_namelen = is_cooked ? sizeof to : 0 };
	struct mmsghdr ins[2] = { { in, 0 }, { in, 0 } }, all[2] = { { sent, 0 }, { sent, 0 } };
	struct pollfd event = { fd, POLLIN, 0 };
	struct epoll_event at = { .events = EPOLLIN };
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &at);
	fd_set set;
	pthread_setcanceltype(victim->type, NULL);
	pthread_cleanup_push(clean, &epoll);
	victim->begun = 1;
	for (;;)
		switch (victim->way) {
		case RECV: recv(fd, bytes, sizeof bytes, 0); break;
		case RECVFROM: recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &len); break;
		case RECVMSG: recvmsg(fd, &in, 0); break;
		case RECVMMSG: recvmmsg(fd, ins, 2, 0, NULL); break;
		case READ: if (read(fd, bytes, sizeof bytes) < 0) break; break;
		case READV: if (readv(fd, &part, 1) < 0) break; break;
		case POLL: poll(&event, 1, -1); break;
		case SELECT: FD_ZERO(&set); FD_SET(fd, &set); select(fd + 1, &set, NULL, NULL, NULL); break;
		case EPOLL: epoll_wait(epoll, &at, 1, -1); break;
		case SEND: send(fd, frame, sizeof frame, 0); break;
		case SENDTO: sendto(fd, frame, sizeof frame, 0, is_cooked ? (struct sockaddr *)&to : NULL, is_cooked ? sizeof to : 0); break;
		case SENDMSG: sendmsg(fd, &sent, 0); break;
		case SENDMMSG: sendmmsg(fd, all, 2, 0); break;
		case WRITE: if (write(fd, frame, sizeof frame) < 0) break; break;
		case WRITEV: if (writev(fd, &out, 1) < 0) break; break;
		}
	pthread_cleanup_pop(0);
	return NULL;
}

/* Cancels threads in each kind of waiting or sending call, with both cancellation types, at any moment; then uses and
 * closes the socket. */
static void cancel(long rounds) {
	unsigned char frame[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_ifindex = index_of, .sll_halen = 6, .sll_protocol = htons(0x88b5) };
	alarm(300);
	for (int kind = 0; kind < 2; kind++)
		for (int way = 0; way < WAYS; way++)
			for (int type = 0; type < 2; type++) {
				int fd = opened(kind ? SOCK_DGRAM : SOCK_RAW, ETH_P_ALL);
				for (long n = 0; n < rounds; n++) {
					struct victim victim = { way, type ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, fd, kind, 0 };
					pthread_t thread;
					void *answer = NULL;
					long before = cleaned;
					pthread_create(&thread, NULL, call_until_cancelled, &victim);
					while (!victim.begun)
						sched_yield();
					for (long pause = n % 20; pause > 0; pause--)
						sched_yield();
					pthread_cancel(thread);
					pthread_join(thread, &answer);
					if (answer != PTHREAD_CANCELED || cleaned != before + 1)
						die(ways[way]);
					if (sendto(fd, frame, sizeof frame, 0, kind ? (struct sockaddr *)&to : NULL, kind ? sizeof to : 0) != sizeof frame)
						die(ways[way]);
				}
				close(fd);
			}
	printf("%ld cancelled\n", cleaned);
}

/* Overwrites the arguments, as a program does that changes its name, and then looks for the interface. */
static int rename_and_find(int argc, char **argv) {
	char *name = strdup(argv[2]), *end = argv[argc - 1] + strlen(argv[argc - 1]);
	struct ifaddrs *all = NULL;
	int found = 0;
	memset(argv[0], 0, end - argv[0]);
	strcpy(argv[0], "me");
	if (getifaddrs(&all))
		die("getifaddrs");
	for (struct ifaddrs *one = all; one; one = one->ifa_next)
		found |= !strcmp(one->ifa_name, name);
	puts(found ? "found" : "not found");
	return 0;
}

int main(int argc, char **argv) {
	const char *what = argv[1], *third = argc > 3 ? argv[3] : "";
	if (!strcmp(what, "renames"))
		return rename_and_find(argc, argv);
	interface = argv[2];
	index_of = if_nametoindex(interface);
	if (!index_of)
		die(interface);
	if (!strcmp(what, "calls"))
		calls();
	else if (!strcmp(what, "receive"))
		receive(!strcmp(third, "cooked") ? SOCK_DGRAM : SOCK_RAW, strtol(argv[4], NULL, 16), argc > 5 ? argv[5] : "");
	else if (!strcmp(what, "send"))
		send_frames(atol(third));
	else if (!strcmp(what, "count"))
		count_frames(atol(third));
	else if (!strcmp(what, "gone"))
		wait_for_the_end();
	else if (!strcmp(what, "hostile"))
		hostile();
	else if (!strcmp(what, "links"))
		links();
	else if (!strcmp(what, "asks"))
		ask_by_descriptor();
	else if (!strcmp(what, "shares"))
		share();
	else if (!strcmp(what, "cancel"))
		cancel(atol(third));
	else if (!strcmp(what, "churn"))
		churn(atol(third), atoi(argv[4]));
	return 0;
}
