"""Log what a start found and did: damage as an error, things that an operator may want to check as a warning."""

import logging

from courser.broker.partition_registry import PartitionRegistry
from courser.catalog.opening import OpenedCatalog

_log = logging.getLogger(__name__)


def log_catalog(opened: OpenedCatalog) -> None:
    """Log what was found in the metadata and the directories."""
    found, rebuild = opened.reconciliation, opened.rebuild
    if rebuild is not None:
        for problem in rebuild.problems:
            _log.warning("metadata rebuilt reason=%s", problem)
        for path in rebuild.adopted:
            _log.warning("directory adopted path=%s", path)
        for loss in rebuild.lost:
            _log.error("metadata lost what=%s", loss)
    for lost in found.lost:
        place = lost.stream_id, lost.topic_id, lost.partition_id
        _log.error("partition lost stream=%d topic=%d partition=%d path=%s", *place, lost.path)
    for path in found.unknown:
        _log.warning("leaving a directory that is not in the metadata path=%s", path)
    for path, reason in found.bad_descriptors:
        _log.warning("rewrote a descriptor from the metadata path=%s reason=%s", path, reason)
    for path in found.remade:
        _log.info("recreated a directory whose creation was interrupted path=%s", path)
    for removed in found.removed:
        _log.info("removed a deleted directory path=%s", removed)


def log_partitions(partitions: PartitionRegistry) -> None:
    """Log what was found in the partitions."""
    for topic in partitions:
        for partition in topic.partitions:
            log = partition.log
            for finding in log.findings:
                level = logging.WARNING if finding.is_warning else logging.INFO
                level = logging.ERROR if finding.is_damage else level
                _log.log(level, "recovery case=%s path=%s: %s", finding.letter, finding.path, finding.text)
            if log.is_offline:
                place = topic.stream_id, topic.topic_id, log.identity.partition_id
                _log.error("partition is offline stream=%d topic=%d partition=%d path=%s", *place, log.directory)
            elif log.failure is not None:
                _log.error("partition is read-only path=%s reason=%s", log.directory, log.failure)
