// Times the assignors of Kafka's clients for a consumer group that one member leaves or joins, for
// `make bench`. The members have subscribed to one topic, and the group is settled before that.
// Prints a line of JSON for each assignor and event:
//
//   times_ms  the time inside assign() in each run, warm-up runs left out
//   owned     the partitions of each member before the event, the member that leaves left out
//   moved     the partitions that go from one of these members to another one
//
// Usage: java -cp 'JARS/*' Assignors.java MEMBERS PARTITIONS RUNS

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.RebalanceProtocol;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public final class Assignors {
    private static final String GROUP = "report";
    private static final String TOPIC = "report";
    /** Runs of each event whose time does not count: the JVM compiles meanwhile. */
    private static final int WARM_UP_RUNS = 10;
    /** An assignment with more rounds does not end. */
    private static final int ROUNDS_MAX = 10;
    private static final List<Supplier<ConsumerPartitionAssignor>> ASSIGNORS =
        List.of(RangeAssignor::new, StickyAssignor::new, CooperativeStickyAssignor::new);

    /** The partitions of each member. */
    private static final class Owned extends TreeMap<String, List<TopicPartition>> {}

    /** Each member, and each run, has an assignor of its own. */
    private final Supplier<ConsumerPartitionAssignor> assignors;
    private final Cluster cluster;
    private long nanoseconds;

    private Assignors(Supplier<ConsumerPartitionAssignor> assignors, Cluster cluster) {
        this.assignors = assignors;
        this.cluster = cluster;
    }

    public static void main(String[] arguments) {
        if (arguments.length != 3) {
            System.err.println("usage: Assignors MEMBERS PARTITIONS RUNS");
            System.exit(2);
        }
        int members = Integer.parseInt(arguments[0]);
        Cluster cluster = cluster(Integer.parseInt(arguments[1]));
        int runs = Integer.parseInt(arguments[2]);
        for (Supplier<ConsumerPartitionAssignor> assignors : ASSIGNORS) {
            new Assignors(assignors, cluster).measure(members, runs);
        }
    }

    /** A cluster whose only topic has this many partitions. */
    private static Cluster cluster(int partitions) {
        Node broker = new Node(0, "localhost", 9092);
        Node[] replicas = {broker};
        List<PartitionInfo> all = IntStream.range(0, partitions)
            .mapToObj(number -> new PartitionInfo(TOPIC, number, broker, replicas, replicas))
            .collect(Collectors.toList());
        return new Cluster("report", List.of(broker), all, Set.of(), Set.of());
    }

    /** Names have the order of the numbers. */
    private static String member(int number) {
        return String.format("member-%08d", number);
    }

    private void measure(int members, int runs) {
        // Even numbers, so that the member that joins has a place in the middle.
        Owned settled = new Owned();
        IntStream.range(0, members).forEach(at -> settled.put(member(2 * at), List.of()));
        settled.putAll(assign(settled));
        int middle = members / 2 * 2;

        Owned left = new Owned();
        left.putAll(settled);
        left.remove(member(middle));
        measure("leaves", left, runs);

        Owned joined = new Owned();
        joined.putAll(settled);
        joined.put(member(middle + 1), List.of());
        measure("joins", joined, runs);
    }

    private void measure(String event, Owned before, int runs) {
        List<Double> times = new ArrayList<>();
        Owned after = before;
        for (int run = 0; run < WARM_UP_RUNS + runs; run++) {
            nanoseconds = 0;
            after = assign(before);
            if (run >= WARM_UP_RUNS) {
                times.add(nanoseconds / 1e6);
            }
        }
        List<Integer> owned = new ArrayList<>();
        int moved = 0;
        for (Map.Entry<String, List<TopicPartition>> member : before.entrySet()) {
            Set<TopicPartition> kept = new HashSet<>(after.get(member.getKey()));
            List<TopicPartition> partitions = member.getValue();
            moved += (int) partitions.stream().filter(one -> !kept.contains(one)).count();
            owned.add(partitions.size());
        }
        System.out.printf(
            "{\"assignor\":\"%s\",\"event\":\"%s\",\"times_ms\":%s,\"owned\":%s,\"moved\":%d}%n",
            assignors.get().getClass().getSimpleName(), event, times, owned, moved);
    }

    /**
     * Assigns all partitions to these members. A cooperative assignor needs two rounds for a
     * partition that moves: its owner revokes it in the first, and it is assigned in the second.
     */
    private Owned assign(Owned before) {
        Owned owned = before;
        for (int round = 1; round <= ROUNDS_MAX; round++) {
            owned = round(owned, round);
            Set<TopicPartition> all = new HashSet<>();
            owned.values().forEach(all::addAll);
            if (owned.values().stream().mapToInt(List::size).sum() != all.size()) {
                throw new IllegalStateException("a partition has two owners");
            }
            if (all.size() == cluster.partitionCountForTopic(TOPIC)) {
                return owned;
            }
        }
        throw new IllegalStateException("a partition has no owner after all rounds");
    }

    /** One call of assign(), as the leader of the group makes it; its time is added. */
    private Owned round(Owned owned, int generation) {
        Map<String, Subscription> subscriptions = new HashMap<>();
        owned.forEach((member, partitions) ->
            subscriptions.put(member, subscription(member, partitions, generation)));
        GroupSubscription group = new GroupSubscription(subscriptions);
        ConsumerPartitionAssignor leader = assignors.get();
        long begun = System.nanoTime();
        Map<String, Assignment> assigned = leader.assign(cluster, group).groupAssignment();
        nanoseconds += System.nanoTime() - begun;
        Owned all = new Owned();
        assigned.forEach((member, assignment) -> all.put(member, assignment.partitions()));
        return all;
    }

    /** What a member sends when it joins. An eager one has revoked its partitions by then. */
    @SuppressWarnings("removal")
    private Subscription subscription(String member, List<TopicPartition> owned, int generation) {
        ConsumerPartitionAssignor assignor = assignors.get();
        if (!owned.isEmpty()) {
            assignor.onAssignment(
                new Assignment(owned),
                new ConsumerGroupMetadata(GROUP, generation, member, Optional.empty()));
        }
        boolean isCooperative =
            assignor.supportedProtocols().contains(RebalanceProtocol.COOPERATIVE);
        return new Subscription(
            List.of(TOPIC), assignor.subscriptionUserData(Set.of(TOPIC)),
            isCooperative ? owned : List.of(), generation, Optional.empty());
    }
}
