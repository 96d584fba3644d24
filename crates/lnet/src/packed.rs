//! Small messages that wait in memory by the million, packed: most bytes of their headers, and of the headers of RPCs, are zero.
//! Bulk data is never packed.

use crate::frame::{self, FrameHeader, HEADER_LEN, Telling};
use crate::message::Message;
use bytes::Bytes;
use nacre_base::Payload;

/// Longest payload that is packed. Longer ones are bulk data, or replies with much in them.
const PAYLOAD_MAX: usize = 512;

/// A message without its zeroes.
///
/// The first byte says whether the message is an answer. The rest is the message as it would be on a wire, in words of eight bytes:
/// for each word a byte whose bits say which bytes of the word are not zero, and these bytes; after a word that is zero, the number
/// of further words that are.
#[derive(Debug)]
pub(crate) struct Packed(Box<[u8]>);

impl Packed {
    /// Packs a message, if that is worth it.
    pub(crate) fn pack(message: &Message) -> Option<Packed> {
        let [payload] = message.payload.pieces() else { return None };
        if message.damaged || message.is_bulk() || payload.len() > PAYLOAD_MAX {
            return None;
        }
        let head = FrameHeader {
            header: message.header,
            payload_len: payload.len(),
            payload_checksum: None,
            want_bulk: false,
            telling: Telling::WithTheNext,
            taken: 0,
            no_message: false,
        };
        let whole = [&frame::encode_fields(&head)[..], &payload[..]].concat();
        let mut packed = vec![u8::from(message.is_answer)];
        put_words(&whole, &mut packed);
        Some(Packed(packed.into()))
    }

    /// The message.
    pub(crate) fn unpack(&self) -> Message {
        let mut whole = take_words(&self.0[1..]);
        let head = whole.first_chunk::<HEADER_LEN>().and_then(|head| frame::decode_fields(head).ok());
        let FrameHeader { header, payload_len, .. } = head.expect("a header that was packed is whole");
        assert!(whole.len() >= HEADER_LEN + payload_len, "{header:?} lost bytes of its payload");
        whole.truncate(HEADER_LEN + payload_len);
        let payload = Payload::from(Bytes::copy_from_slice(&whole[HEADER_LEN..]));
        Message { header, payload, damaged: false, is_answer: self.0[0] == 1 }
    }
}

/// Appends the words of `bytes`, which are filled up with zeroes to a whole number of words.
fn put_words(bytes: &[u8], out: &mut Vec<u8>) {
    let mut words = bytes.chunks(8).peekable();
    while let Some(word) = words.next() {
        let bits = word.iter().enumerate().fold(0, |bits, (at, byte)| bits | u8::from(*byte != 0) << at);
        out.push(bits);
        out.extend(word.iter().filter(|byte| **byte != 0));
        if bits == 0 {
            let mut further = 0;
            while further < u8::MAX && words.next_if(|word| word.iter().all(|byte| *byte == 0)).is_some() {
                further += 1;
            }
            out.push(further);
        }
    }
}

/// The words that [`put_words`] appended.
fn take_words(mut packed: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + PAYLOAD_MAX);
    while let Some((bits, rest)) = packed.split_first() {
        packed = rest;
        let mut take = || {
            let (byte, rest) = packed.split_first().expect("words are packed whole");
            packed = rest;
            *byte
        };
        match bits {
            0 => out.resize(out.len() + 8 * (1 + usize::from(take())), 0),
            bits => (0..8).for_each(|at| out.push(if bits >> at & 1 == 1 { take() } else { 0 })),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Portal, Purpose};
    use nacre_base::{Nid, Prng};

    #[test]
    fn bytes_come_back_as_they_were_and_zeroes_take_no_room() {
        let mut prng = Prng::new(7);
        for _ in 0..5000 {
            let (len, density) = (prng.below(600), prng.below(8));
            let bytes: Vec<u8> =
                (0..len).map(|_| if prng.below(8) < density { prng.next_u64() as u8 } else { 0 }).collect();
            let mut packed = Vec::new();
            put_words(&bytes, &mut packed);
            let mut back = take_words(&packed);
            assert!(back.len() >= bytes.len() && back[bytes.len()..].iter().all(|byte| *byte == 0));
            back.truncate(bytes.len());
            assert_eq!(back, bytes);
        }
        let mut packed = Vec::new();
        put_words(&[0; 4096], &mut packed);
        assert_eq!(packed.len(), 4);
    }

    #[test]
    fn a_message_comes_back_whole_and_one_with_much_data_is_not_packed() {
        let message = |payload: Vec<u8>| {
            let mut message = Message::put(Nid::sim(5), Portal(12), 77, payload.into());
            message.header.source = Nid::sim(6);
            message.header.purpose = Purpose::Callbacks;
            message.is_answer = true;
            message
        };
        let mut payload = vec![0; 215];
        payload[100..110].fill(9);
        let packed = Packed::pack(&message(payload.clone())).unwrap();
        assert!(packed.0.len() < 80, "{} bytes", packed.0.len());
        let (back, whole) = (packed.unpack(), message(payload));
        assert_eq!((back.header, back.payload, back.is_answer), (whole.header, whole.payload, true));
        assert!(Packed::pack(&message(vec![1; PAYLOAD_MAX + 1])).is_none());
        assert!(Packed::pack(&message(Vec::new())).is_none());
    }
}
