# Writes captures as other programs write them into the current folder.
import struct, os, sys
def eth(n, payload_len=46, vlan=None, seq=0):
    dst=bytes.fromhex('020000000002'); src=bytes.fromhex('020000000001')
    udp_len=8+payload_len
    tot=20+udp_len
    ip=struct.pack('>BBHHHBBH4s4s',0x45,0,tot,n&0xffff,0,64,17,0,bytes([198,18,0,1]),bytes([198,19,0,1]))
    s=sum(struct.unpack('>10H',ip)); 
    while s>>16: s=(s&0xffff)+(s>>16)
    ip=ip[:10]+struct.pack('>H',~s&0xffff)+ip[12:]
    udp=struct.pack('>HHHH',4000+n,9,udp_len,0)
    pay=bytes((n+i)&0xff for i in range(payload_len))
    tag=b''
    if vlan is not None:
        for tpid,tci in vlan: tag+=struct.pack('>HH',tpid,tci)
    return dst+src+tag+b'\x08\x00'+ip+udp+pay
def pcap(name, recs, magic=0xa1b2c3d4, link=1, snap=262144, e='<', ver=(2,4), mod=False):
    with open(name,'wb') as f:
        f.write(struct.pack(e+'IHHiIII',magic,ver[0],ver[1],0,0,snap,link))
        for r in recs:
            s,us,data=r[:3]; orig=r[3] if len(r)>3 else len(data); incl=r[4] if len(r)>4 else len(data)
            f.write(struct.pack(e+'IIII',s,us,incl,orig))
            if mod: f.write(struct.pack(e+'IHBB',1,0x0800,0,0))
            f.write(data)
T=1700000000
std=[(T+i//10,(i%10)*100000,eth(i)) for i in range(20)]
pcap('std.pcap',std)
pcap('kuz.pcap',std,magic=0xa1b2cd34,mod=True)
pcap('kuz_be.pcap',std,magic=0xa1b2cd34,mod=True,e='>')
# FCS: linktype 1, f bit (0x04000000) and FCS length 2 (16-bit units) in upper 4 bits => 0x24000001
import zlib
fc=[(s,u,d+struct.pack('<I',zlib.crc32(d))) for s,u,d in std]
pcap('fcs4.pcap',fc,link=0x24000001)
pcap('fcs_class.pcap',std,link=0x02240001)   # class NetBSD style garbage
pcap('calongerthanlen.pcap',[(T,0,eth(1,100)),(T,1000,eth(2,743)+b'\xee'*16,785),(T,2000,eth(3,100))])
big=eth(2,60000)+b'\x55'*(92442-60042)
pcap('big92442.pcap',[(T,0,eth(1)),(T,1000,big),(T,2000,eth(3))])
pcap('gap418.pcap',[(T,0,eth(0)),(T,700000,eth(1)),(T,800000,eth(2)),(T+1,0,eth(3))])
ip=[(s,u,d[14:]) for s,u,d in std]
pcap('raw101.pcap',ip,link=101); pcap('raw12.pcap',ip,link=12); pcap('raw14.pcap',ip,link=14)
pcap('ipv4_228.pcap',ip,link=228)
pcap('null0.pcap',[(s,u,struct.pack('<I',2)+d) for s,u,d in ip],link=0)
sll=struct.pack('>HHH8sH',0,1,6,bytes.fromhex('0200000000010000'),0x0800)
pcap('sll113.pcap',[(s,u,sll+d) for s,u,d in ip],link=113)
sll2=struct.pack('>HHIHBB8s',0x0800,0,2,1,0,6,bytes.fromhex('0200000000010000'))
pcap('sll276.pcap',[(s,u,sll2+d) for s,u,d in ip],link=276)
pcap('wifi127.pcap',[(s,u,struct.pack('<BBHI',0,0,8,0)+b'\x08\x00'*20) for s,u,d in ip],link=127)
pcap('wifi105.pcap',[(s,u,b'\x08\x00'*20) for s,u,d in ip],link=105)
pcap('snap0.pcap',std,snap=0); pcap('snapmax.pcap',std,snap=0xffffffff); pcap('snap68.pcap',[(s,u,d[:68],len(d)) for s,u,d in std],snap=68)
pcap('snaplie.pcap',std,snap=40)   # records longer than the header's snaplen
pcap('ver25.pcap',std,ver=(2,5)); pcap('ver3.pcap',std,ver=(3,0)); pcap('ver23.pcap',std,ver=(2,3))
pcap('usec2M.pcap',[(T,0,eth(0)),(T,1500000,eth(1)),(T+2,0,eth(2))])
pcap('y2106.pcap',[(0xfffffff0,0,eth(0)),(0xfffffff0,500000,eth(1))])
pcap('ooo.pcap',[(T,0,eth(0)),(T,300000,eth(1)),(T,100000,eth(2)),(T,400000,eth(3))])
pcap('zero.pcap',[(T,0,b''),(T,1000,eth(1)),(T,2000,b'\x01'),(T,3000,eth(2)[:13]),(T,4000,eth(3)[:14])])
pcap('empty.pcap',[])
open('nothing.pcap','wb').close()
open('hdr10.pcap','wb').write(open('std.pcap','rb').read()[:10])
open('cat.pcap','wb').write(open('std.pcap','rb').read()+open('std.pcap','rb').read())
open('text.pcap','w').write('hello world this is not a capture\n'*5)
pcap('epoch0.pcap',[(0,0,eth(0)),(T,0,eth(1)),(T,100000,eth(2))])
pcap('be_ns.pcap',[(s,u*1000,d) for s,u,d in std],magic=0xa1b23c4d,e='>')
q=[[(0x8100,7)],[(0x88a8,100),(0x8100,7)],[(0x8100,1),(0x8100,2)],[(0x8100,0)],[(0x9100,5),(0x8100,6)],[(0x8100,0xe000|4095)]]
pcap('vlans.pcap',[(T,i*20000,eth(i,vlan=v)) for i,v in enumerate(q)])
# pcapng helpers
def opt(code,data,e='<'):
    return struct.pack(e+'HH',code,len(data))+data+b'\0'*(-len(data)%4)
def blk(t,body,e='<'):
    l=12+len(body); return struct.pack(e+'II',t,l)+body+struct.pack(e+'I',l)
def shb(e='<',length=-1,opts=b'',ver=(1,0)): return blk(0x0A0D0D0A,struct.pack(e+'IHHq',0x1A2B3C4D,ver[0],ver[1],length)+opts,e)
def idb(link=1,snap=0,opts=b'',e='<'): 
    if opts: opts+=struct.pack(e+'HH',0,0)
    return blk(1,struct.pack(e+'HHI',link,0,snap)+opts,e)
def epb(i,ts,d,orig=None,e='<',opts=b''):
    return blk(6,struct.pack(e+'IIIII',i,ts>>32,ts&0xffffffff,len(d),orig or len(d))+d+b'\0'*(-len(d)%4)+opts,e)
def spb(d,orig=None,e='<'): return blk(3,struct.pack(e+'I',orig or len(d))+d+b'\0'*(-len(d)%4),e)
def opb(i,ts,d,e='<'): return blk(2,struct.pack(e+'HHIIII',i,0xffff,ts>>32,ts&0xffffffff,len(d),len(d))+d+b'\0'*(-len(d)%4),e)
W=lambda n,*b: open(n,'wb').write(b''.join(b))
W('ng_res.pcapng',shb(),idb(),idb(opts=opt(9,b'\x09')),idb(opts=opt(9,b'\x8a')),idb(opts=opt(9,b'\x03')),
  epb(0,T*10**6,eth(0)),epb(1,T*10**9+200_000_000,eth(1)),epb(2,T*1024+409,eth(2)),epb(3,T*1000+600,eth(3)))
W('ng_off.pcapng',shb(),idb(opts=opt(14,struct.pack('<q',T))),idb(opts=opt(14,struct.pack('<q',-3600))),
  epb(0,100_000,eth(0)),epb(1,(T+3600)*10**6+300_000,eth(1)))
W('ng_spb.pcapng',shb(),idb(snap=64),idb(snap=0),spb(eth(0)[:64],orig=88),epb(0,T*10**6,eth(1)[:64],orig=88))
W('ng_noidb.pcapng',shb(),epb(0,T*10**6,eth(0)))
W('ng_badif.pcapng',shb(),idb(),epb(0,T*10**6,eth(0)),epb(5,T*10**6+1000,eth(1)),epb(0,T*10**6+2000,eth(2)))
W('ng_opb.pcapng',shb(),idb(),opb(0,T*10**6,eth(0)),opb(0,T*10**6+100000,eth(1)))
W('ng_unknown.pcapng',shb(),idb(),blk(0x0BAD,struct.pack('<I',1)+b'abcdefgh'),blk(10,struct.pack('<II',0x544c534b,8)+b'SECRETS!'),blk(0x80000001,b'jrnl'*4),epb(0,T*10**6,eth(0)),blk(4,struct.pack('<HH',0,0)),blk(5,struct.pack('<III',0,0,0)))
W('ng_epbflagsfcs.pcapng',shb(),idb(),*[epb(0,T*10**6+i*1000,d,opts=opt(2,struct.pack('<I',(4<<5)|1))+struct.pack('<HH',0,0)) for i,(s,u,d) in enumerate(fc)])
W('ng_mixlink.pcapng',shb(),idb(),idb(link=113),idb(link=101),epb(0,T*10**6,eth(0)),epb(1,T*10**6+1000,sll+eth(1)[14:]),epb(2,T*10**6+2000,eth(2)[14:]),epb(0,T*10**6+3000,eth(3)))
W('ng_ver12.pcapng',shb(ver=(1,2)),idb(),epb(0,T*10**6,eth(0)))
W('ng_seclen.pcapng',shb(length=len(idb())+len(epb(0,1,eth(0)))),idb(),epb(0,T*10**6,eth(0)))
W('ng_rawonly.pcapng',shb(),idb(link=101),epb(0,T*10**6,eth(0)[14:]),epb(0,T*10**6+1,eth(1)[14:]))
W('ng_trunc.pcapng',shb(),idb(),epb(0,T*10**6,eth(0)),epb(0,T*10**6,eth(1))[:50])
W('ng_noend.pcapng',shb(),idb(opts=opt(2,b'eth\xff\xfe')),epb(0,T*10**6,eth(0)))
W('ng_epb_badlen.pcapng',shb(),idb(),blk(6,struct.pack('<IIIII',0,0,0,5000,5000)+eth(0)[:40]),epb(0,T*10**6,eth(1)))

W('ng_comment.pcapng',shb(),idb(opts=opt(2,b'uplink0')),epb(0,T*10**6,eth(0)[:60],orig=88,opts=opt(1,b'look here')+struct.pack('<HH',0,0)),epb(0,T*10**6+5,bytes.fromhex('ffffffffffff0200000000010806')+bytes(28)))
pcap('mtu.pcap',[(T,i*1000,eth(i,n)) for i,n in enumerate([46,1000,1472,1472,1300,46])])
import socket
A6=socket.inet_pton(socket.AF_INET6,'2001:db8::1'); B6=socket.inet_pton(socket.AF_INET6,'2001:db8::2')
def ip6(nh,body): return bytes.fromhex('020000000002020000000001')+b'\x86\xdd'+struct.pack('>IHBB',0x60000000,len(body),nh,64)+A6+B6+body
udp=struct.pack('>HHHH',1234,53,28,0)+bytes(20)
hbh=lambda nh: struct.pack('>BB',nh,0)+b'\x01\x04\0\0\0\0'
rt=lambda nh: struct.pack('>BBBB',nh,0,4,0)+bytes(4)
frag=lambda nh,off,m: struct.pack('>BBHI',nh,0,(off<<3)|m,77)
ah=lambda nh: struct.pack('>BBHII',nh,4,0,1,1)+bytes(12)
# plain, hop by hop, three headers, first fragment, later fragment, atomic fragment, AH, nine headers, none
pcap('ip6ext.pcap',[(T,i,f) for i,f in enumerate([ip6(17,udp),ip6(0,hbh(17)+udp),ip6(0,hbh(43)+rt(60)+hbh(17)+udp),ip6(44,frag(17,0,1)+udp),ip6(44,frag(17,4,0)+bytes(24)),ip6(44,frag(17,0,0)+udp),ip6(51,ah(17)+udp),ip6(60,hbh(60)*8+hbh(17)+udp),ip6(59,b'')])])
