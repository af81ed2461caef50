from courser.model.buffers import Buffer

def survey(body: Buffer, count: int, /) -> tuple[int, bytes, bytes, bool, bool] | None: ...
def first_in_cells(
    starts: Buffer, frame_size: int, count: int, position: int, offset: int, interval: int, cell: int, /
) -> tuple[bytes, bytes, int]: ...
def check_batch(data: Buffer, /) -> tuple[int, int, int, bytes, bytes] | None: ...
def stamp_header(
    blank: bytes,
    checksums: Buffer,
    body: Buffer,
    base_offset: int,
    base_timestamp: int,
    origin_timestamp: int,
    message_count: int,
    frame_size: int,
    /,
) -> bytearray: ...
def survey_classic(
    section: Buffer, count: int, header_size: int, payload_size_max: int, user_headers_size_max: int, /
) -> tuple[int, int, int] | None: ...
def frames_from_classic(
    section: Buffer, ids: Buffer, into: memoryview, count: int, header_size: int, first_origin: int, /
) -> tuple[int, bytes, bytes] | None: ...
def classic_from_frames(
    body: Buffer,
    into: memoryview,
    position: int,
    count: int,
    header_size: int,
    base_offset: int,
    base_timestamp: int,
    origin_timestamp: int,
    /,
) -> int | None: ...
def write_frames(payloads: list[Buffer], blocks: list[Buffer] | None, heads: Buffer, into: memoryview, /) -> None: ...
def fill_checksums(body: Buffer, count: int, /) -> None: ...
def cut_frames(body: Buffer, skip: int, count: int, size_max: int, /) -> tuple[int, int, int]: ...
def xxh3(data: Buffer, /) -> tuple[int, ...]: ...
