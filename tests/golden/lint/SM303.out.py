# retain_graph=True in loops.
def train(net, batches):
    for x in batches:
        loss = net(x).mean()
        loss.backward(retain_graph=True)


def twice(net, x):
    loss = net(x).mean()
    loss.backward(retain_graph=True)
    loss.backward()
    while True:
        net(x).mean().backward(retain_graph=False)
