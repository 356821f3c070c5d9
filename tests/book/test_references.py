"""The bibliography's entries: complete, and with an address that can be followed."""

import re
import unicodedata
from pathlib import Path

import pytest
from pybtex.database import Entry, parse_file

ENTRIES = parse_file(str(Path(__file__).parents[2] / "book" / "references.bib"), "bibtex").entries


@pytest.mark.parametrize("key", sorted(ENTRIES))
def test_entry_is_complete(key: str):
    entry: Entry = ENTRIES[key]
    assert {"title", "year"} <= set(entry.fields)
    assert "doi" in entry.fields or "eprint" in entry.fields
    assert re.fullmatch(r"10\.\d{4,}/\S+", entry.fields.get("doi", "10.1234/x"))
    assert re.fullmatch(r"\d{4}\.\d{5}", entry.fields.get("eprint", "1604.06174"))
    assert entry.type == "misc" or "journal" in entry.fields or "booktitle" in entry.fields


@pytest.mark.parametrize("key", sorted(ENTRIES))
def test_key_is_first_author_and_year(key: str):
    entry: Entry = ENTRIES[key]
    last = "".join(entry.persons["author"][0].last_names)
    plain = unicodedata.normalize("NFKD", last).encode("ascii", "ignore").decode().lower()
    assert key == re.sub(r"[^a-z]", "", plain) + entry.fields["year"]


def test_no_work_stands_twice():
    for field in ("title", "doi", "eprint"):
        values = [entry.fields[field].lower() for entry in ENTRIES.values() if field in entry.fields]
        assert len(values) == len(set(values))
