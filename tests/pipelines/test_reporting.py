"""What a pipeline tells the server about itself."""

from courser.pipelines.reporting import masked


def test_a_definition_is_reported_without_its_secrets() -> None:
    text = """[server]
url = "iggy://bob:hidden@127.0.0.1:8090"
password = "hidden"
spark.hadoop.fs.s3a.secret.key = "hidden"
[source]
topic = "shop/orders"
"""
    shown = masked(text)
    assert "hidden" not in shown
    assert 'topic = "shop/orders"' in shown
    assert "@127.0.0.1:8090" in shown
