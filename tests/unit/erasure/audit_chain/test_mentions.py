"""A subject is found in the audit however it is spelt, and nothing else is."""

from inference_store.erasure.mentions import mentions


def test_key_and_value_are_found() -> None:
    for detail, key, value in (
        ({"filter": "driver = 'O''Brien'"}, "driver", "O'Brien"),
        ({"filter": "metadata.driver LIKE '%ann%'"}, "driver", "ann"),
        ({"filter": '"the ""driver""" = \'ann\''}, 'the "driver"', "ann"),
        ({"subject": {"key": "driver", "value": "ann"}}, "driver", "ann"),
        ({"rules": [{"filter": {"args": [{"property": "driver"}, "ann"]}}]}, "driver", "ann"),
        ({"filter": '{"args": [{"property": "driver"}, "say \\"ann\\""]}'}, "driver", 'say "ann"'),
        ({"reason": "asked by driver ann, by letter"}, "driver", "ann"),
        ({"items": {"driver": "ann"}}, "driver", "ann"),
        ({"filter": "n = 42.0"}, "n", "42"),
        ({"args": [{"property": "n"}, 4.2e1]}, "n", "42"),
        ({"filter": "fit = TRUE"}, "fit", "true"),
        ({"args": [{"property": "fit"}, False]}, "fit", "false"),
        ({"filter": "born = TIMESTAMP('2000-01-01T00:00:00Z')"}, "born", "2000-01-01T01:00+01:00"),
        ({"filter": "driver = 'Łódź'"}, "driver", "Łódź"),
        ({"filter": "CASEI(driver) = 'ann lee'"}, "Driver", "Ann  Lee"),
        ({"filter": "ACCENTI(driver) = 'jose'"}, "driver", "José"),
        ({"reason": "asked by driver JOSE\u0301"}, "driver", "José"),
    ):
        assert mentions(detail, key, value), detail
        assert mentions([{"deeper": [detail]}], key, value), detail


def test_a_value_that_tells_enough_is_found_without_the_key() -> None:
    for detail, value in (
        ({"reason": "Ann Lee asked (ann), by letter."}, "ann"),
        ({"reason": "the case of ann."}, "ann"),
        ({"name": "The case of ANN"}, "ann"),
        ({"name": "the case of \uff21\uff2e\uff2e"}, "ann"),
        ({"name": "p-1044"}, "p-1044"),
        ({"reason": "file 104455/26 of 104455"}, "104455"),
        ({"filter": "rider = 'O''Brien'"}, "O'Brien"),
        ({"filter": '{"args": [{"property": "rider"}, "ann"]}'}, "ann"),
    ):
        assert mentions(detail, "driver", value), detail


def test_does_not_find_similar_values() -> None:
    for detail, key, value in (
        ({"filter": "driver = 'annual'"}, "driver", "ann"),
        ({"filter": "rider = 'a'"}, "driver", "a"),
        ({"filter": "drivers = 'ann-marie' OR mail = 'ann@b.org'"}, "driver", "ann"),
        ({"models": ["ann.v2", "s3://b/ann"], "ann": 1, "n": 10445}, "driver", "ann"),
        ({"filter": "m = 1044", "limit": 10445}, "n", "10445"),
        ({"reason": "1044 of them"}, "n", "1044"),
        ({"filter": "fit = TRUE"}, "driver", "true"),
        ({"reason": "since 2026-11-01"}, "born", "2026-11-01"),
        ({"filter": "n = 142 AND at = '2026-01-42' AND x = 42.5"}, "n", "42"),
        ({"n": True, "at": 1.5}, "n", "1"),
        ({"args": [{"property": "fit"}, True]}, "fit", "false"),
        ({"filter": "{not json", "n": None}, "driver", "ann"),
        ({}, "driver", "ann"),
    ):
        assert not mentions(detail, key, value), detail
