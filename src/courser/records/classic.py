"""Convert classic messages, those of SDKs 0.5 to 0.8, to and from the stored form: whole batches at a time, with numpy.

Nothing is lost for 0.7 and 0.8. User headers of 0.5 and 0.6 are stored in the typed form and returned as they were
sent. If such a client sent a block in the typed form, it is returned untyped, which is the form that those clients can
read.
"""

from courser.records.classic_decoding import ClassicLimits, decode_classic, header_size_of
from courser.records.classic_encoding import classic_size_max, encode_classic
from courser.records.classic_layout import Dialect

__all__ = ["ClassicLimits", "Dialect", "classic_size_max", "decode_classic", "encode_classic", "header_size_of"]
