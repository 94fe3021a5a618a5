"""The messages are those of the standards, and do not collide with other definitions."""

import pytest
from google.protobuf import descriptor_pool

from inference_store.grpc_messages import message

# What the published packages of Triton's and MLServer's clients and servers have: message, field,
# number, and whether it repeats.
NUMBERS = """
inference.InferParameter bool_param=1 int64_param=2 string_param=3 double_param=4 uint64_param=5
inference.InferTensorContents bool_contents=1 int_contents=2 int64_contents=3 uint_contents=4
  uint64_contents=5 fp32_contents=6 fp64_contents=7 bytes_contents=8
inference.ModelInferRequest model_name=1 model_version=2 id=3 parameters=4 inputs=5 outputs=6
  raw_input_contents=7
inference.ModelInferResponse model_name=1 model_version=2 id=3 parameters=4 outputs=5
  raw_output_contents=6
inference.ModelStreamInferResponse error_message=1 infer_response=2
inference.ModelReadyRequest name=1 version=2
inference.ModelMetadataRequest name=1 version=2
inference.ModelMetadataResponse name=1 versions=2 platform=3 inputs=4 outputs=5 parameters=6
inference.ServerMetadataResponse name=1 version=2 extensions=3
inference.ModelRepositoryParameter bool_param=1 int64_param=2 string_param=3 bytes_param=4
inference.RepositoryIndexRequest repository_name=1 ready=2
inference.RepositoryIndexResponse models=1
inference.RepositoryModelLoadRequest repository_name=1 model_name=2 parameters=3
inference.RepositoryModelUnloadRequest repository_name=1 model_name=2 parameters=3
RunRequest inputs=1 detect_drift=2 explain=3
RunResponse status_code=1 status=2 message=3 outputs=4
InputItem input=1
OutputItem output=1 success=2
StatusResponse status_code=1 status=2 message=3 model_info=4 description=5 inputs=6 outputs=7
  resources=8 timeout=9 features=10
ModelFeatures adversarial_defense=1 batch_size=2 retrainable=3 results_format=4 drift_format=5
  explanation_format=6
"""


def test_fields_have_the_numbers_of_the_public_specifications() -> None:
    for line in NUMBERS.strip().replace("\n  ", " ").split("\n"):
        name, *fields = line.split()
        described = message(name).DESCRIPTOR.fields
        assert [f"{field.name}={field.number}" for field in described] == fields, name


def test_the_pool_that_everybody_shares_does_not_know_them() -> None:
    for name in ("inference.ModelInferRequest", "RunRequest"):
        assert message(name).DESCRIPTOR.full_name == name
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(name)
    with pytest.raises(KeyError):
        message("inference.Nothing")
