//! A UDP socket for noq that looks at what passes. Sending and receiving are noq's own (noq-udp over tokio).

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll};

use quicbed_contract::udp::MAX_BATCH_BYTES;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpSender};

use crate::engine::traffic::Meter;

/// What noq makes of the system's socket, and takes.
pub type LibrarySocket = Box<dyn AsyncUdpSocket>;

/// Whether the system can send several datagrams at once.
pub fn has_gso(socket: &LibrarySocket) -> bool {
    socket.create_sender().max_transmit_segments().get() > 1
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
    // noq hands over ten datagrams at once whatever their size, and takes a send the system refuses as too long for done:
    // everything in it would be lost.
    let fitting = NonZeroUsize::new(MAX_BATCH_BYTES / udp_payload).unwrap_or(NonZeroUsize::MIN);
    let max_transmit_segments = match gso {
        true => fitting,
        false => NonZeroUsize::MIN,
    };
    let max_receive_segments = match gro {
        true => socket.max_receive_segments(),
        false => NonZeroUsize::MIN,
    };
    Box::new(MeteredSocket {
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
    max_transmit_segments: NonZeroUsize,
    max_receive_segments: NonZeroUsize,
}

impl AsyncUdpSocket for MeteredSocket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(MeteredSender {
            sender: self.socket.create_sender(),
            meter: self.meter.clone(),
            max_transmit_segments: self.max_transmit_segments,
        })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
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

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.max_receive_segments
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

/// noq makes one for the socket itself and one for each connection.
#[derive(Debug)]
struct MeteredSender {
    sender: Pin<Box<dyn UdpSender>>,
    meter: Meter,
    max_transmit_segments: NonZeroUsize,
}

impl UdpSender for MeteredSender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = this.meter.before_send();
        let result = this.sender.as_mut().poll_send(transmit, cx);
        if let Poll::Ready(Ok(())) = result {
            this.meter.sent(transmit, before);
        }
        result
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        // noq finds out while sending if a network card cannot do GSO.
        self.max_transmit_segments
            .min(self.sender.max_transmit_segments())
    }
}
