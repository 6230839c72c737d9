"""What a URL shows, and that nothing of its secrets is in it, however it is written."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.files.urls import Addresses, is_url, mask_urls, parse_url
from ortdeploy.redaction import without_secrets

SHOWN = [
    ("s3://bucket/scans/2026-0?-*/*.png", "s3://bucket/scans/2026-0?-*/*.png"),
    ("s3://bucket/a@b#c.png", "s3://bucket/a@b#c.png"),
    ("s3://bucket/key?versionId=abc", "s3://bucket/key"),
    ("S3://bucket/key", "s3://bucket/key"),
    ("https://user:word@host:8443/a.csv?sig=x#part", "https://host:8443/a.csv"),
    ("https://token@host/a.csv", "https://host/a.csv"),
    ("https://host?sig=x", "https://host"),
    ("https://host/a.csv?flag", "https://host/a.csv"),
    ("https://u:p@[2001:db8::7]/a.csv", "https://[2001:db8::7]/a.csv"),
    ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
    ("abfss://user:word@account/a", "abfss://account/a"),
    ("s3://AKIA:sec/ret@bucket/key", "s3:…"),
    ("https://user:pa/ss@host/a", "https:…"),
    ("https://user:pa#ss@host/a", "https:…"),
    ("zip://a::https://user:word@host/b.zip", "zip:…"),
    ("zip://a::s3://bucket/b.zip", "zip://a::s3://bucket/b.zip"),
    ("data:text/plain,secret", "data:…"),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_what_is_shown_of_a_url(text: str, shown: str) -> None:
    assert parse_url(text).shown == shown
    assert str(parse_url(text)) == shown
    assert repr(parse_url(text)) == f"Url({shown})"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/key", True),
        ("simplecache::file:///etc/passwd", True),
        ("dir::/etc", True),
        ("DATA:,x", True),
        ("C:/data/x.npy", False),
        ("c://data/x.npy", False),
        ("./file:///x", False),
        ("folder/with:colon//x", False),
        ("folder/a::b", False),
        ("a:b.csv", False),
        ("file%3A///etc/passwd", False),
    ],
)
def test_what_counts_as_a_url(text: str, url: bool) -> None:
    assert is_url(text) == url


SECRET = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=30)


@given(secret=SECRET, scheme=st.sampled_from(["https", "sftp", "s3", "az", "hf"]), encoded=st.booleans())
def test_no_secret_in_the_place_of_a_password_or_a_query_value_is_shown(
    secret: str, scheme: str, encoded: bool
) -> None:
    canary = f"canary{secret}"
    written = quote(canary, safe="") if encoded else canary
    for text in (f"{scheme}://user:{written}@host/a.csv", f"{scheme}://host/a.csv?sig={written}"):
        shown = parse_url(text).shown
        assert "canary" not in shown
        assert parse_url(shown).shown == shown or not parse_url(text).is_clear


@given(
    secret=SECRET,
    before=st.sampled_from(["", "cannot read ", "('", '"', "<"]),
    after=st.sampled_from(["", ".", ")", " x"]),
)
def test_urls_in_other_peoples_words_are_shown_as_urls_are(secret: str, before: str, after: str) -> None:
    written = quote(secret, safe="")
    text = f"{before}https://user:{written}canary@host/a?sig={written}canary{after}"
    assert "canary" not in mask_urls(text)
    assert "https://host/a" in mask_urls(text)


def test_a_librarys_words_lose_the_secrets_of_the_url_that_they_are_about() -> None:
    url = parse_url("https://user:hunter22@host/a?X-Amz-Signature=d%2Fadbeef")
    words = "403 for /a?X-Amz-Signature=d%2Fadbeef (signature d/adbeef, user:hunter22, hunter22)"
    cleaned = url.mask(words)
    assert "adbeef" not in cleaned
    assert "hunter22" not in cleaned


def test_what_differs_in_its_query_alone_keeps_a_name_of_its_own_and_opens_what_it_is() -> None:
    patterns = ["https://host/get?file=1&sig=aaaa", "https://host/get?file=2&sig=bbbb", "https://host/one?sig=cccc"]
    addresses = Addresses.of(patterns)
    names = [addresses.shown(pattern) for pattern in patterns]
    assert len(set(names)) == 3
    assert names[2] == "https://host/one", "a signature that is made anew is no other file"
    assert not any("sig" in name for name in names)
    assert [addresses.full(name) for name in names] == patterns
    assert [without_secrets(name) for name in names] == names


def test_a_file_that_was_listed_is_opened_with_the_user_of_its_server_alone() -> None:
    addresses = Addresses.of(["sftp://user:word@host/in/*.csv", "data.csv"])
    assert addresses.full("sftp://host/in/a.csv") == "sftp://user:word@host/in/a.csv"
    assert addresses.full("sftp://other/in/a.csv") == "sftp://other/in/a.csv"
    assert addresses.full("https://host/in/a.csv") == "https://host/in/a.csv"
