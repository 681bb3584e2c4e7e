//! A UDP socket for quinn that looks at what passes. Sending and receiving are quinn's own (quinn-udp over tokio).

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quicbed_contract::udp::MAX_BATCH_BYTES;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::engine::traffic::Meter;

/// What quinn makes of the system's socket, and takes.
pub type LibrarySocket = Arc<dyn AsyncUdpSocket>;

/// Whether the system can send several datagrams at once.
pub fn has_gso(socket: &LibrarySocket) -> bool {
    socket.max_transmit_segments() > 1
}

/// `socket` with a meter at its side. `gso` and `gro` tell whether several datagrams may pass the system at once, `udp_payload`
/// is the largest one's size in bytes.
pub fn metered(
    socket: LibrarySocket,
    meter: Meter,
    gso: bool,
    gro: bool,
    udp_payload: usize,
) -> LibrarySocket {
    // quinn hands over ten datagrams at once whatever their size, and takes a send the system refuses as too long for done:
    // everything in it would be lost.
    let fitting = (MAX_BATCH_BYTES / udp_payload).max(1);
    let max_transmit_segments = match gso {
        true => socket.max_transmit_segments().min(fitting),
        false => 1,
    };
    let max_receive_segments = match gro {
        true => socket.max_receive_segments(),
        false => 1,
    };
    Arc::new(MeteredSocket {
        socket,
        meter,
        max_transmit_segments,
        max_receive_segments,
    })
}

#[derive(Debug)]
struct MeteredSocket {
    socket: LibrarySocket,
    meter: Meter,
    max_transmit_segments: usize,
    max_receive_segments: usize,
}

impl AsyncUdpSocket for MeteredSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        let before = self.meter.before_send();
        self.socket.try_send(transmit)?;
        self.meter.sent(transmit, before);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let result = self.socket.poll_recv(cx, bufs, meta);
        if let Poll::Ready(Ok(received)) = result {
            self.meter.received(received, bufs, meta);
        }
        result
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        // quinn finds out while sending if a network card cannot do GSO.
        self.max_transmit_segments
            .min(self.socket.max_transmit_segments())
    }

    fn max_receive_segments(&self) -> usize {
        self.max_receive_segments
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}
