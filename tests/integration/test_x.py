import time
from integration import apps
def test_x(cluster):
    t=time.time()
    a = cluster.start({f"p{i}": apps.Plain.bind() for i in range(6)} | {"bad": apps.Bad.bind()})
    print(time.time()-t)
    for i in range(6):
        a[f"p{i}"].ready(); print(time.time()-t)
    print(a["bad"].failed()); print(time.time()-t)
    print(a["p0"].report()["stages"])
    cluster.delete(a); print(time.time()-t)
