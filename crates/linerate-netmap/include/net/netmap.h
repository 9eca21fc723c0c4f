/*
 * The part of netmap's interface that a program needs to open a port and use its rings: the structures of API 14, as in
 * netmap(4). A program compiled with this header runs with liblinerate_netmap.so and with netmap's kernel module. Names
 * and layouts are netmap's; the text is this project's.
 */
#ifndef LINERATE_NET_NETMAP_H
#define LINERATE_NET_NETMAP_H

#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/types.h>

#define NETMAP_API 14

/* A buffer's index, the length of its data, and flags. */
struct netmap_slot {
	uint32_t buf_idx;
	uint16_t len;
	uint16_t flags;
	uint64_t ptr;
};

#define NS_BUF_CHANGED 0x0001 /* buf_idx was changed */
#define NS_REPORT 0x0002      /* report when sent */
#define NS_FORWARD 0x0004     /* forward between host and card */
#define NS_NO_LEARN 0x0008    /* a switch does not learn the source address */
#define NS_INDIRECT 0x0010    /* the bytes are at ptr */
#define NS_MOREFRAG 0x0020    /* the packet continues in the next slot */
#define NS_RFRAGS(slot) (((slot)->flags >> 8) & 0xff)
#define NETMAP_MAX_FRAGS 64

struct netmap_ring {
	int64_t buf_ofs;
	uint32_t num_slots;
	uint32_t nr_buf_size;
	uint16_t ringid;
	uint16_t dir; /* 1: transmit, 0: receive, as netmap's kernel code sets it */
	uint32_t head;
	uint32_t cur;
	uint32_t tail;
	uint32_t flags;
	struct timeval ts;
	uint64_t offset_mask;
	uint64_t buf_align;
	uint8_t __attribute__((__aligned__(128))) sem[128];
	struct netmap_slot slot[];
};

#define NR_TIMESTAMP 0x0002 /* set ts */
#define NR_FORWARD 0x4         /* NS_FORWARD is enabled on this ring */

struct netmap_if {
	char ni_name[IFNAMSIZ];
	uint32_t ni_version;
	uint32_t ni_flags;
	uint32_t ni_tx_rings;
	uint32_t ni_rx_rings;
	uint32_t ni_bufs_head;
	uint32_t ni_host_tx_rings;
	uint32_t ni_host_rx_rings;
	uint32_t ni_spare1[3];
	ssize_t ring_ofs[];
};

/* The control API. */
struct nmreq_header {
	uint16_t nr_version;
	uint16_t nr_reqtype;
	uint32_t nr_reserved;
	char nr_name[64];
	uint64_t nr_options;
	uint64_t nr_body;
};

enum {
	NETMAP_REQ_REGISTER = 1,
	NETMAP_REQ_PORT_INFO_GET,
	NETMAP_REQ_VALE_ATTACH,
	NETMAP_REQ_VALE_DETACH,
	NETMAP_REQ_VALE_LIST,
};

struct nmreq_register {
	uint64_t nr_offset;
	uint64_t nr_memsize;
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_host_tx_rings;
	uint16_t nr_host_rx_rings;
	uint16_t nr_mem_id;
	uint16_t nr_ringid;
	uint32_t nr_mode;
	uint32_t nr_extra_bufs;
	uint64_t nr_flags;
};

enum {
	NR_REG_DEFAULT = 0,
	NR_REG_ALL_NIC = 1,
	NR_REG_SW = 2,
	NR_REG_NIC_SW = 3,
	NR_REG_ONE_NIC = 4,
	NR_REG_NULL = 7,
	NR_REG_ONE_SW = 8,
};

#define NR_MONITOR_TX 0x100
#define NR_MONITOR_RX 0x200
#define NR_ZCOPY_MON 0x400
#define NR_EXCLUSIVE 0x800
#define NR_RX_RINGS_ONLY 0x2000
#define NR_TX_RINGS_ONLY 0x4000

/* The older API. */
struct nmreq {
	char nr_name[IFNAMSIZ];
	uint32_t nr_version;
	uint32_t nr_offset;
	uint32_t nr_memsize;
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_ringid;
	uint16_t nr_cmd;
	uint16_t nr_arg1;
	uint16_t nr_arg2;
	uint32_t nr_arg3;
	uint32_t nr_flags;
	uint32_t spare2[1];
};

#define NIOCGINFO _IOWR('i', 145, struct nmreq)
#define NIOCREGIF _IOWR('i', 146, struct nmreq)
#define NIOCTXSYNC _IO('i', 148)
#define NIOCRXSYNC _IO('i', 149)
#define NIOCCTRL _IOWR('i', 151, struct nmreq_header)

/* Access to rings and buffers, as in netmap_user.h. */
#define NETMAP_IF(base, offset) ((struct netmap_if *)((char *)(base) + (offset)))
#define NETMAP_TXRING(nifp, n) ((struct netmap_ring *)((char *)(nifp) + (nifp)->ring_ofs[n]))
#define NETMAP_RXRING(nifp, n) NETMAP_TXRING(nifp, (n) + (nifp)->ni_tx_rings + (nifp)->ni_host_tx_rings)
#define NETMAP_BUF(ring, n) ((char *)(ring) + (ring)->buf_ofs + (size_t)(n) * (ring)->nr_buf_size)

static inline uint32_t nm_ring_next(struct netmap_ring *ring, uint32_t slot)
{
	return slot + 1 == ring->num_slots ? 0 : slot + 1;
}

static inline uint32_t nm_ring_space(struct netmap_ring *ring)
{
	return ring->tail >= ring->cur ? ring->tail - ring->cur : ring->tail + ring->num_slots - ring->cur;
}

static inline int nm_ring_empty(struct netmap_ring *ring)
{
	return ring->head == ring->tail;
}

static inline int nm_tx_pending(struct netmap_ring *ring)
{
	return nm_ring_next(ring, ring->tail) != ring->head;
}

#endif
