"""What a start found and did, for the log: damage as an error, what an operator may want to look at as a warning."""

import logging

from courser.broker.partition_registry import PartitionRegistry
from courser.catalog.opening import OpenedCatalog
from courser.storage.recovery_cases import Oddity

_log = logging.getLogger(__name__)


def log_catalog(opened: OpenedCatalog) -> None:
    """What was found about the metadata and the directories."""
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
        _log.warning("directory unknown to the metadata, left alone path=%s", path)
    for path in found.remade:
        _log.info("directory made again, its creation was interrupted path=%s", path)
    for removed in found.removed:
        _log.info("deleted directory removed path=%s", removed)


def log_partitions(partitions: PartitionRegistry) -> None:
    """What was found in the partitions."""
    for topic in partitions:
        for partition in topic.partitions:
            log = partition.log
            for finding in log.findings:
                level = logging.ERROR if finding.is_damage else logging.INFO
                if finding.letter == Oddity.FUTURE_TIME.value:
                    level = logging.WARNING
                _log.log(level, "recovery case=%s path=%s: %s", finding.letter, finding.path, finding.text)
            if log.failure is not None:
                _log.error("partition is read-only path=%s reason=%s", log.directory, log.failure)
