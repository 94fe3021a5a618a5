"""The templates of paths are those that the OpenAPI tells; what it tells of streams."""

from inference_store.api.access import GuardedRoute
from inference_store.api.app import create_app
from inference_store.api.templates import OTHER, Templates
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings

_SETTINGS = {
    "postgres_dsn": "postgresql://nobody@127.0.0.1:1/nothing",
    "s3_endpoint": "http://127.0.0.1:1",
    "s3_access_key": "none",
    "s3_secret_key": "none",
    "s3_bucket": "none",
}


def test_each_path_of_the_openapi_has_its_methods() -> None:
    settings = ApiSettings.model_validate(_SETTINGS | {"auth": "off"})
    engine = create_engine(settings.postgres_dsn.get_secret_value())
    with Blobs(settings) as blobs:
        app = create_app(settings, engine, blobs)
    templates: Templates = app.state.templates
    paths = app.openapi()["paths"]
    assert len(paths) > 50
    for path, item in paths.items():
        filled_path = path.replace("{", "a-").replace("}", "")
        assert templates.of(path) == path
        assert templates.of(filled_path) != OTHER
        assert set(templates.methods(filled_path)) >= {method.upper() for method in item}
    assert templates.of("/v1/nowhere") == OTHER
    assert templates.methods("/v1/nowhere") == []


def test_apps_share_their_routes() -> None:
    """FastAPI takes a tenth of a second to build them."""
    settings = ApiSettings.model_validate(_SETTINGS | {"auth": "off"})
    engine = create_engine(settings.postgres_dsn.get_secret_value())
    with Blobs(settings) as blobs:
        routes, other_routes = (create_app(settings, engine, blobs).routes for _ in range(2))
    shared = {id(route) for route in routes} & {id(route) for route in other_routes}
    guarded = [route for route in routes if isinstance(route, GuardedRoute)]
    assert len(guarded) > 75
    assert shared == {id(route) for route in guarded}


def test_a_route_that_streams_says_that_it_needs_the_right_export() -> None:
    settings = ApiSettings.model_validate(_SETTINGS | {"auth": "off"})
    engine = create_engine(settings.postgres_dsn.get_secret_value())
    with Blobs(settings) as blobs:
        paths = create_app(settings, engine, blobs).openapi()["paths"]
    streaming = {
        (path, method)
        for path, item in paths.items()
        for method, operation in item.items()
        if "A stream needs `export` as well" in operation["description"]
    }
    assert streaming == {
        ("/v1/models/{model_id}/inferences", "get"),
        ("/v1/models/{model_id}/inferences/query", "post"),
        ("/v1/inferences/query", "post"),
    }
