//! The checksum of data on the wire: CRC32C over the bytes, however they are cut into pieces.

use nacre_base::Payload;

/// CRC32C of the data.
pub(crate) fn crc32c(data: &Payload) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    data.pieces().iter().for_each(|piece| digest.update(piece));
    // The algorithm's result has 32 bits.
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn the_check_value_of_the_standard() {
        let mut data = Payload::new();
        data.push(Bytes::from_static(b"1234"));
        data.push(Bytes::from_static(b"56789"));
        assert_eq!(crc32c(&data), 0xe306_9283);
    }
}
