// Handles Azure Scheduled Events, on Azure and with Forewarn. .NET 6 or newer, or Mono; no packages.
//
// The program polls. For each event that names this VM, it prepares, approves, and reports the start and the end.

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Net.Http;
using System.Runtime.InteropServices;
using System.Runtime.Serialization;
using System.Runtime.Serialization.Json;
using System.Text;
using System.Threading;

[DataContract]
class Event
{
    [DataMember(IsRequired = true)] public string EventId;
    [DataMember(IsRequired = true)] public string EventType;
    [DataMember(IsRequired = true)] public string EventStatus;
    [DataMember(IsRequired = true)] public List<string> Resources;
    [DataMember] public string NotBefore;
    public bool Ready; // prepared, and to be approved
    public double? Sent; // the last approval
}

[DataContract]
class Document
{
    [DataMember(IsRequired = true)] public long DocumentIncarnation;
    [DataMember(IsRequired = true)] public List<Event> Events;
}

static class Client
{
    const string Azure = "http://169.254.169.254";
    const string EventsPath = "/metadata/scheduledevents?api-version=2020-07-01";
    const string NamePath = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
    const double FirstTimeout = 130; // seconds; on Azure, the response to the first GET can take two minutes
    const double OlderSeconds = 10; // a lower incarnation that stays this long is a new count, not an old document
    static readonly string[] KnownTypes = { "Freeze", "Reboot", "Redeploy", "Preempt", "Terminate" };

    static readonly Dictionary<string, string> options = new Dictionary<string, string>
    {
        { "--endpoint", Environment.GetEnvironmentVariable("FOREWARN_ENDPOINT") },
        { "--name", "" }, // of this VM in events; empty: ask the endpoint
        { "--run", "" }, // command that prepares this VM
        { "--interval", "1" }, // seconds between polls
        { "--timeout", "10" }, // seconds for a response
        { "--repeat", "60" }, // seconds until the same approval again
    };
    static readonly HttpClientHandler direct = new HttpClientHandler { UseProxy = false, AllowAutoRedirect = false };
    static readonly HttpClient http = new HttpClient(direct);
    static readonly CancellationTokenSource stop = new CancellationTokenSource();
    static readonly Stopwatch clock = Stopwatch.StartNew();
    static readonly Dictionary<string, Event> tracked = new Dictionary<string, Event>(); // events of this VM
    static long incarnation = -1; // of the last document; -1: none yet
    static double? olderSince;
    static string problem = ""; // the last one, so that it is reported once

    static double Now { get { return clock.Elapsed.TotalSeconds; } }

    static double Seconds(string option)
    {
        return double.Parse(options[option], System.Globalization.CultureInfo.InvariantCulture);
    }

    static int Main(string[] arguments)
    {
        for (int i = 0; i < arguments.Length; i += 2)
        {
            if (!options.ContainsKey(arguments[i]) || i + 1 == arguments.Length)
            {
                Console.Error.WriteLine("unknown option, or no value: " + arguments[i]);
                return 2;
            }
            options[arguments[i]] = arguments[i + 1];
        }
        if (string.IsNullOrEmpty(options["--endpoint"])) options["--endpoint"] = Azure;
        http.Timeout = Timeout.InfiniteTimeSpan; // each request has its own
        Console.CancelKeyPress += (_, signal) => { signal.Cancel = true; stop.Cancel(); };
#if NET6_0_OR_GREATER
        Action<PosixSignalContext> end = signal => { signal.Cancel = true; stop.Cancel(); };
        using var terminate = PosixSignalRegistration.Create(PosixSignal.SIGTERM, end);
#elif __MonoCS__
        var terminate = new Mono.Unix.UnixSignal(Mono.Unix.Native.Signum.SIGTERM);
        new Thread(() => { terminate.WaitOne(); stop.Cancel(); }) { IsBackground = true }.Start();
#endif
        try
        {
            Run(options["--name"]);
        }
        catch (OperationCanceledException) when (stop.IsCancellationRequested)
        {
        }
        return 0;
    }

    static void Run(string name)
    {
        while (name == "")
        {
            name = (Request(HttpMethod.Get, NamePath) ?? "").Trim();
            if (name == "") Pause();
        }
        Console.WriteLine("polling {0} as {1}", options["--endpoint"], name);
        for (;; Pause())
        {
            Document document = Poll();
            if (document == null) continue;
            if (IsNew(document.DocumentIncarnation)) Handle(document.Events, name);
            Approve();
        }
    }

    static void Pause()
    {
        stop.Token.WaitHandle.WaitOne(TimeSpan.FromSeconds(Seconds("--interval")));
        stop.Token.ThrowIfCancellationRequested();
    }

    // Returns the text of a response with status 200; null after any failure, which the next poll retries.
    static string Request(HttpMethod method, string path, string body = null)
    {
        double timeout = Math.Max(Seconds("--timeout"), incarnation < 0 ? FirstTimeout : 0);
        using (var limit = CancellationTokenSource.CreateLinkedTokenSource(stop.Token))
        using (var request = new HttpRequestMessage(method, options["--endpoint"].TrimEnd('/') + path))
        {
            limit.CancelAfter(TimeSpan.FromSeconds(timeout));
            request.Headers.Add("Metadata", "true");
            if (body != null) request.Content = new StringContent(body, Encoding.UTF8, "application/json");
            string text = null, found = "";
            try
            {
                using (HttpResponseMessage response = http.SendAsync(request, limit.Token).GetAwaiter().GetResult())
                {
                    text = response.Content.ReadAsStringAsync().GetAwaiter().GetResult();
                    if ((int)response.StatusCode != 200) found = "status " + (int)response.StatusCode;
                }
            }
            catch (Exception error) when (error is HttpRequestException || error is IOException
                                          || error is OperationCanceledException)
            {
                stop.Token.ThrowIfCancellationRequested();
                found = limit.IsCancellationRequested ? "timeout" : error.GetBaseException().Message;
            }
            Report(method, found);
            return found == "" ? text : null;
        }
    }

    // Prints a problem when it begins, not at each poll. An empty one means success.
    static void Report(HttpMethod method, string found)
    {
        string line = "retrying " + method + ": " + found;
        if (found != "" && line != problem) Console.Error.WriteLine(line);
        if (found != "") problem = line;
        else if (problem.StartsWith(line, StringComparison.Ordinal)) problem = "";
    }

    // Returns the current document; null if there is none.
    static Document Poll()
    {
        string text = Request(HttpMethod.Get, EventsPath);
        if (text == null) return null;
        try
        {
            var stream = new MemoryStream(Encoding.UTF8.GetBytes(text));
            var document = (Document)new DataContractJsonSerializer(typeof(Document)).ReadObject(stream);
            bool valid = document?.Events != null;
            if (valid && document.Events.All(one => one?.EventId != null && one.Resources != null)) return document;
        }
        catch (SerializationException) // reported below
        {
        }
        Report(HttpMethod.Get, "malformed document");
        return null;
    }

    // Returns whether to read the document: it has another incarnation than the last one, and is not an old one.
    static bool IsNew(long number)
    {
        if (number < incarnation)
        {
            olderSince = olderSince ?? Now;
            if (Now - olderSince < OlderSeconds) return false;
        }
        bool changed = number != incarnation;
        incarnation = number;
        olderSince = null;
        return changed;
    }

    static void Handle(List<Event> events, string name)
    {
        List<Event> mine = events.Where(one => one.Resources.Contains(name)).ToList();
        foreach (Event known in tracked.Values.Where(one => !mine.Any(other => other.EventId == one.EventId)).ToList())
        {
            tracked.Remove(known.EventId);
            Say("ended", known);
        }
        foreach (Event one in mine)
        {
            Event known;
            if (tracked.TryGetValue(one.EventId, out known) && known.EventStatus == one.EventStatus) continue;
            tracked[one.EventId] = one;
            if (!KnownTypes.Contains(one.EventType)) Say("ignored", one, "unknown event type");
            else if (one.EventStatus == "Started") Say("started", one);
            else if (one.EventStatus == "Scheduled")
            {
                Say("scheduled", one, "not before " + one.NotBefore);
                one.Ready = Prepare(one);
            }
        }
    }

    // Prepares this VM, once for each event. Returns whether to approve the event.
    static bool Prepare(Event one)
    {
        if (options["--run"] != "")
        {
            bool windows = Path.DirectorySeparatorChar == '\\';
            var start = new ProcessStartInfo { FileName = windows ? "cmd.exe" : "/bin/sh", UseShellExecute = false };
            // The shell takes the command from its environment, so that nothing needs quotes.
            start.Arguments = windows ? "/d /c %EVENT_COMMAND%" : "-c \"eval \\\"$EVENT_COMMAND\\\"\"";
            start.EnvironmentVariables["EVENT_COMMAND"] = options["--run"];
            start.EnvironmentVariables["EVENT_ID"] = one.EventId;
            start.EnvironmentVariables["EVENT_TYPE"] = one.EventType;
            start.EnvironmentVariables["EVENT_NOT_BEFORE"] = one.NotBefore ?? "";
            using (Process command = Process.Start(start))
            {
                while (!command.WaitForExit(100)) stop.Token.ThrowIfCancellationRequested();
                if (command.ExitCode != 0)
                {
                    Say("not approved", one, "the command ended with " + command.ExitCode);
                    return false;
                }
            }
        }
        Say("prepared", one);
        if (one.Resources.Count == 1) return true;
        Say("not approved", one, "it names other VMs too"); // an approval would start the event for all of them
        return false;
    }

    // Approves prepared events; again if an event is still Scheduled after a while.
    static void Approve()
    {
        foreach (Event one in tracked.Values)
        {
            if (!one.Ready || one.EventStatus != "Scheduled" || Now - one.Sent < Seconds("--repeat")) continue;
            var id = new MemoryStream(); // as JSON, in quotes
            new DataContractJsonSerializer(typeof(string)).WriteObject(id, one.EventId);
            string body = "{\"StartRequests\":[{\"EventId\":" + Encoding.UTF8.GetString(id.ToArray()) + "}]}";
            if (Request(HttpMethod.Post, EventsPath, body) == null) continue;
            one.Sent = Now;
            Say("approved", one);
        }
    }

    static void Say(string step, Event one, string detail = "")
    {
        Console.WriteLine("{0} {1} {2}{3}", step, one.EventType, one.EventId, detail == "" ? "" : ": " + detail);
    }
}
