"""The pod of a run as Prefect's Kubernetes worker makes it of infra/kubernetes/work-pool.json, as JSON on stdout.

    python job.py POOL_FILE DEPLOYMENT PARAMETERS

In a container with the image's packages and the variables of the worker's manifest; no cluster is asked.
"""

import asyncio
import json
import sys
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.utilities.templating import apply_values
from prefect_kubernetes.settings import KubernetesSettings
from prefect_kubernetes.worker import KubernetesWorker, KubernetesWorkerJobConfiguration


async def main(pool: Path, name: str, parameters: str) -> None:
    """Make a run of a deployment and print the pod of its Job."""
    template = json.loads(pool.read_text())
    async with get_client() as client:
        deployment = await client.read_deployment_by_name(name)
        run = await client.create_flow_run_from_deployment(deployment.id, parameters=json.loads(parameters))
        flow = await client.read_flow(deployment.flow_id)
    defaults = {key: item.get("default") for key, item in template["variables"]["properties"].items()}
    values = defaults | {"labels": {}} | deployment.job_variables
    made = KubernetesWorkerJobConfiguration(**apply_values(template["job_configuration"], values, remove_notset=False))
    made.prepare_for_flow_run(run, deployment=deployment, flow=flow)
    known = KubernetesSettings().worker
    await KubernetesWorker._replace_env_variable_with_secret(
        None,
        env_variable_name="PREFECT_API_AUTH_STRING",
        configuration=made,
        secret_name=known.api_auth_string_secret_name,
        secret_key=known.api_auth_string_secret_key,
    )
    print(json.dumps(made.job_manifest))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
