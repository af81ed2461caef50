"""``python -m benchmarks``: compare the engine with bare loops that do the same I/O. The exit code is always 0."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import (
    appending,
    archiving,
    at_rest,
    background,
    client,
    decoding,
    group_commit,
    growth,
    index_rebuild,
    lookups,
    memory,
    metadata,
    polling,
    processes,
    reading,
    releases,
    rolling,
    scraping,
    searching,
    serving,
    spark,
    spark_archive,
    spark_releases,
    starting,
    sustained,
    tails,
    transcoding,
    transports,
    upserts,
)
from benchmarks.harness import FULL, QUICK, Bench, Case, Row, Scale, Weight, default_directory
from benchmarks.report import as_json, table
from courser.bench.results import machine_facts

CASES = (
    Case("appending", "appends at `written` beside bare writes", appending.run),
    Case("group-commit", "16 appenders at `synced`, with and without group commit", group_commit.run),
    Case("reading", "sequential reads beside bare reads", reading.run),
    Case("at-rest", "compression, encryption and deduplication", at_rest.run),
    Case("archiving", "the archive beside bare copies and range reads", archiving.run),
    Case("background", "sends and polls during archiving and scrubbing", background.run),
    Case("transcoding", "classic messages to batches and back", transcoding.run),
    Case("decoding", "JSON payloads to columns and Parquet beside Arrow's parser alone", decoding.run),
    Case("upserts", "upserts into a Delta table beside the merge of Delta's library", upserts.run),
    Case("lookups", "random reads and index lookups", lookups.run),
    Case("index-rebuild", "index rebuild, scan and verify", index_rebuild.run),
    Case("rolling", "sends across rolls", rolling.run),
    Case("sustained", "sends over many gigabytes", sustained.run),
    Case("tails", "tail latency while segments roll and are deleted, beside a quiet server", tails.run),
    Case("memory", "indexes, open partitions, small batches", memory.run),
    Case("metadata", "commands, starts and memory of the catalog", metadata.run),
    Case("releases", "sends and polls of SDK 0.10 beside those of SDK 0.9", releases.run),
    Case("serving", "the server over TCP beside a bare server", serving.run),
    Case("polling", "large polls: readers of one partition, and ways from a file to a socket", polling.run),
    Case("processes", "a server of two processes beside one of a single process", processes.run),
    Case("transports", "HTTP, WebSocket and QUIC beside TCP", transports.run),
    Case("metrics", "a scrape with many partitions, and what counting costs a send", scraping.run),
    Case("searching", "searches over HTTP, and sends beside them", searching.run),
    Case("client", "our own client beside the load generator", client.run),
    Case("spark", "Spark on topics beside Spark on Parquet", spark.run),
    Case("spark-archive", "Spark on an archive beside segment files and range reads", spark_archive.run),
    Case("growth", "how costs grow with topics, partitions, messages, groups, connections, bytes", growth.run),
    Case("starting", "starts with little and with much sealed data", starting.run),
)


def main(arguments: Sequence[str] | None = None, *, quick: Scale = QUICK) -> None:
    """Run the selected cases and print their results."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{case.name:14} {case.text}" for case in CASES))
        return
    scale = quick if options.quick else FULL
    if options.rounds:
        scale = replace(scale, rounds=options.rounds)
    directory = options.directory or default_directory()
    bench = Bench(directory, scale)
    facts = machine_facts(directory)
    print("\n".join(f"{name:12} {fact}" for name, fact in facts.items()))
    print(f"{'rounds':12} {scale.rounds}, bare and engine in turns; a ratio is the median of the rounds' ratios")
    found: dict[str, list[Row]] = {}
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        begin = time.perf_counter()
        found[case.name] = list(case.run(bench))
        print(f"\n## {case.name}: {case.text} ({time.perf_counter() - begin:.0f} s)\n\n{table(found[case.name])}")
    if options.beside_spark and (own := found.get("spark")):
        found["spark-releases"] = list(spark_releases.rows_beside(options.beside_spark, bench, own))
        print(f"\n## spark-releases: the case spark on another release\n\n{table(found['spark-releases'])}")
    _print_misses(found)
    if options.json:
        options.json.write_text(as_json(facts, found) + "\n")


def _print_misses(found: dict[str, list[Row]]) -> None:
    rows = [row for rows in found.values() for row in rows if row.target is not None]
    musts = [row for row in rows if row.target is not None and row.target.weight is Weight.MUST]
    missed = [row for row in musts if row.target is not None and not row.target.is_met(row)]
    print(f"\n{len(musts) - len(missed)} of {len(musts)} targets met")
    for row in missed:
        print(f"MISSED: {row.measure}")


def _rounds(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="one case; may be given again")
    parser.add_argument(
        "--beside-spark",
        type=Path,
        metavar="PYTHON",
        help="run the case spark with this interpreter, too, whose pyspark is another release, and compare",
    )
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--rounds", type=_rounds, help="how often bare and engine take turns")
    parser.add_argument("--directory", type=Path, help="where to write, on the disk to be measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every round there")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    return parser


if __name__ == "__main__":
    main()
