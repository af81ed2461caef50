// Written by: make reference. The rows are in src/courser/model/topic_options.py.

/**
 * @typedef {object} TopicOption
 * @property {string} name
 * @property {string} title
 * @property {"duration" | "size" | "count" | "flag" | "choice"} kind
 * @property {string} help
 * @property {string[]} words the values of a choice or a flag
 * @property {boolean} isChangeable
 */

/** @type {TopicOption[]} */
export const TOPIC_OPTIONS = [
  {"name": "message_expiry", "title": "Keep messages for", "kind": "duration", "help": "How long messages are kept; expired ones are deleted a segment at a time. Write 7 days or none. Empty: the default of the server.", "words": [], "isChangeable": true},
  {"name": "max_topic_size", "title": "Largest size", "kind": "size", "help": "The maximum size of all partitions, at least 16 MiB; a full topic deletes its oldest messages or rejects new ones, as the server is configured. Write 10 GiB or unlimited. Empty: the default of the server.", "words": [], "isChangeable": true},
  {"name": "durability", "title": "Durability", "kind": "choice", "help": "When sends are acknowledged: synced, after a sync; default, at the level of the server.", "words": ["persisted", "replicated"], "isChangeable": true},
  {"name": "consumer_offset_durability", "title": "Durability of stored offsets", "kind": "choice", "help": "The same for stored offsets.", "words": ["persisted", "replicated"], "isChangeable": true},
  {"name": "compression_algorithm", "title": "Compression on disk", "kind": "choice", "help": "Compression of messages on disk; none: the default of the server.", "words": ["none", "gzip", "snappy", "lz4", "zstd"], "isChangeable": true},
  {"name": "keep_latest_by_key", "title": "Keep only the latest message of each key", "kind": "flag", "help": "Whether to remove messages once a newer one with the same key is stored; a message without a payload removes its key.", "words": ["true", "false"], "isChangeable": true},
  {"name": "local_retention_time", "title": "Keep archived messages here for", "kind": "duration", "help": "How long the server keeps archived messages on its own disk; older ones are read from the archive. Write 7 days or none. Empty: the default of the server.", "words": [], "isChangeable": true},
  {"name": "local_retention_size", "title": "Keep archived messages here up to", "kind": "size", "help": "How many bytes of archived messages the server keeps on its own disk, over all partitions. Write 10 GiB or unlimited. Empty: the default of the server.", "words": [], "isChangeable": true},
  {"name": "segment_size", "title": "Size of a segment", "kind": "size", "help": "The size at which a partition starts a new file, 1 MiB to 1 GiB. Write 256 MiB. Empty: the default of the server. Cannot be changed later.", "words": [], "isChangeable": false},
  {"name": "enforce_fsync", "title": "Sync messages", "kind": "flag", "help": "Whether messages are synced to disk before they are acknowledged. Cannot be changed later.", "words": ["true", "false"], "isChangeable": false},
  {"name": "messages_required_to_save", "title": "Messages that a power cut may lose", "kind": "count", "help": "How many messages a power cut may lose if messages are synced; 1 loses none. Cannot be changed later.", "words": [], "isChangeable": false},
  {"name": "size_of_messages_required_to_save", "title": "Bytes that a power cut may lose", "kind": "size", "help": "How many bytes a power cut may lose if messages are synced. Write 256 MiB. Empty: the default of the server. Cannot be changed later.", "words": [], "isChangeable": false},
  {"name": "partition_resize_policy", "title": "Number of partitions", "kind": "choice", "help": "Whether partitions can be added and deleted later: mutable, the default, or fixed. Cannot be changed later.", "words": ["mutable", "fixed"], "isChangeable": false},
];
